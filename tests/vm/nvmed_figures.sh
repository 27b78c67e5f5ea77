#!/usr/bin/env bash
# nvmed_figures.sh FIGURES ARGUMENTS: how fast the kernel's NVMe host on rxe0 is with nvmed, and with the kernel's own
# target. Each kind of figures is a function, followed by what it alone calls. MODE and BACKING are start_nvmed's.
set -euo pipefail
# shellcheck source=tests/vm/nvmed_common.sh
source "$(dirname "$0")/nvmed_common.sh"
yield_us=0  # as it is by default

# latency MODE BACKING KILLS [LIMIT_MS RATIO]: while a host reads and writes blocks of 4 KiB, one at a time, nvmed's
# owner is killed; the median of the longest I/O of each kill, and the same of the kernel's own target when it is
# restarted, for a host that asks for it again every second, the shortest that there is. With a limit: the median is at
# most so long, and at most 1/RATIO of the kernel's.
measure_latency() {
  kills=$3 limit=${4:-} ratio=${5:-}

  prefer_the_device
  count_timers
  load_nvme
  start_nvmed "$1" "$2"
  mark_kernel_log
  connect_host "$nqn" "$port" -i 4
  wait_device "$nqn"
  measure nvmed "$device" kill_nvmed
  ours=$median
  kernel_log | check_kernel_log || die "the kernel's log tells of trouble"
  disconnect_host "$nqn"

  kernels=nqn.2014-08.org.example:kernel
  truncate -s "${disk_mib}M" /dev/shm/kernels
  make_target "$kernels" /dev/shm/kernels 4421
  connect_host "$kernels" 4421 -i 4
  wait_device "$kernels"
  measure nvmet "$device" restart_target "$kernels" 4421
  awk -v ours="$ours" -v theirs="$median" 'BEGIN { printf "nvmed : nvmet = 1 : %.1f\n", theirs / ours }'
  [[ -z $limit ]] ||
    awk -v ours="$ours" -v theirs="$median" -v limit="$limit" -v ratio="$ratio" \
      'BEGIN { exit !(ours <= limit && ours * ratio <= theirs) }' || die "that is too long"
  blackouts
}

# measure NAME DEVICE COMMAND...: the longest I/O around each, in ms; $median of them.
measure() {
  local name=$1 device=$2 i
  shift 2
  windows=()
  start_steady_io "$name" "$device" randrw 500
  pause 3
  for ((i = 0; i < kills; ++i)); do
    in_window event "$@"
    pause 1
  done
  end_steady_io "$name"
  longest_of event "$work/${name}_lat.1.log" >"$work/$name.longest"
  median=$(median <"$work/$name.longest")
  echo "$name: longest I/O of each, ms: $(tr '\n' ' ' <"$work/$name.longest"), median $median"
}

# throughput ROUNDS SECONDS [LEAST]: fio at depth 8 against the kernel's own target and against brokered and native
# nvmed, all with the same disk in memory, in turns; medians of the rounds' ratios. With LEAST, the native one's are at
# least so much.
measure_throughput() {
  rounds=$1 seconds=$2 least=${3:-}
  accesses=("randread 4k" "read 128k" "randwrite 4k" "write 128k")
  connections=8

  prefer_the_device
  load_nvme
  make_ram_disk "$disk_mib"
  kernels=nqn.2014-08.org.example:kernel
  make_target "$kernels" /dev/ram0 4430
  local -A device_of=()
  connect_host "$kernels" 4430 -i 4
  wait_device "$kernels"
  device_of[kernel]=$device
  # Two services, each with a batond of its own.
  for mode in BROKERED NATIVE; do
    state=/run/baton-${mode,,} nqn=nqn.2014-08.org.example:${mode,,} port=$((port + 1))
    ready=() owner_of=() moves=0
    start_nvmed "$mode" disk
    connect_host "$nqn" "$port" -i 4
    wait_device "$nqn"
    device_of[${mode,,}]=$device
  done
  run_fio fill --filename="${device_of[kernel]}" --rw=write --bs=128k --iodepth=8

  for ((round = 0; round < rounds; ++round)); do
    for access in "${accesses[@]}"; do
      for target in kernel brokered native; do
        # shellcheck disable=SC2086  # two words
        read -r iops _ < <(throughput "${device_of[$target]}" $access "$seconds")
        echo "$round,$access,$target,$iops"
      done
    done
  done | tee "$work/figures"

  failed=0
  for access in "${accesses[@]}"; do
    for target in brokered native; do
      share=$(awk -F, -v access="$access" -v target="$target" '
        $2 == access && $3 == "kernel" { kernel[$1] = $4 }
        $2 == access && $3 == target { print $4 / kernel[$1] }' "$work/figures" | median)
      echo "$access at depth 8: $target to the kernel's target $share"
      if [[ $target == native && -n $least ]]; then
        awk -v share="$share" -v least="$least" 'BEGIN { exit !(share >= least) }' || failed=1
      fi
    done
  done
  [[ $failed -eq 0 ]] || die "native nvmed is slower than wanted, $least"
}

# demo MODE UPGRADES KILLS RESTARTS SEED: the host has a file system on nvmed. fio writes to one file and verifies what
# it wrote, and times blocks of 4 KiB in another, while nvmed is upgraded and killed. Then the same on the kernel's own
# target, while that is restarted. What it prints is for people; the blocks' latencies and the windows of the events are
# left in the results, for the picture.
show_demo() {
  mode=$1 upgrades=$2 kills=$3 restarts=$4
  RANDOM=$5
  disk_mib=96
  kernels=nqn.2014-08.org.example:kernel

  prefer_the_device
  count_timers
  load_nvme
  start_nvmed "$mode" file
  mark_kernel_log
  with_files nvmed "$nqn" "$port" disturb_nvmed "$upgrades" "$kills" keep_writing
  kernel_log | check_kernel_log || die "the kernel's log tells of trouble"
  statistics | check_counters >/dev/null || die "the device lost something, or was not ready"
  echo "fio, on nvmed: $pass passes of $((jobs * job_mib)) MiB written and verified; the file system is clean;"
  echo "  the kernel's log tells of no reconnect, no time-out and no I/O error"
  {
    printf '  %-28s %5s %17s %17s\n' "longest I/O of the host" events median longest
    tell nvmed quiet "nvmed, undisturbed"
    tell nvmed upgrade "nvmed, upgraded"
    tell nvmed kill "nvmed, killed"
  } >"$work/figures"

  truncate -s "${disk_mib}M" /dev/shm/kernels
  make_target "$kernels" /dev/shm/kernels 4421
  with_files nvmet "$kernels" 4421 restart_kernels
  echo "fio, on the kernel's own target: $pass passes; the host asks for it again every second, the least there is"
  {
    tell nvmet quiet "kernel's nvmet, undisturbed"
    tell nvmet restart "kernel's nvmet, restarted"
  } >>"$work/figures"
  cat "$work/figures"
}

# with_files ACT NQN PORT EVENTS...: connects the host and makes a file system there, calls EVENTS while
# fio is at work, and leaves the file system checked and the host disconnected.
with_files() {
  local act=$1 target=$2 mounted=/run/$1
  connect_host "$target" "$3" -i 4
  wait_device "$target"
  mkfs.ext4 -q "$device"
  mkdir "$mounted"
  mount "$device" "$mounted"
  fallocate -l "$((jobs * job_mib))M" "$mounted/verified"
  fallocate -l 16M "$mounted/timed"
  devices=("$mounted/verified") windows=() pass=0
  start_steady_io "$act" "$mounted/timed" randrw 200
  keep_writing
  in_window quiet pause 3
  "${@:4}"
  finish_writing
  pause 1
  end_steady_io "$act"
  umount "$mounted"
  fsck.ext4 -fn "$device" >"$work/fsck" 2>&1 || die "fsck: $(cat "$work/fsck")"
  disconnect_host "$target"
  cp "$work/${act}_lat.1.log" "$BATON_VM_RESULTS/$act.latencies"
  printf '%s\n' "${windows[@]}" >"$BATON_VM_RESULTS/$act.windows"
}

restart_kernels() {
  local i
  for ((i = 0; i < restarts; ++i)); do
    keep_writing
    in_window restart restart_target "$kernels" 4421
    pause 2
  done
}

# tell ACT KIND WHAT
tell() {
  longest_of "$2" "$work/$1_lat.1.log" | sort -n >"$work/longest"
  [[ ! -s $work/longest ]] || printf '  %-28s %5d %14.1f ms %14.1f ms\n' "$3" "$(wc -l <"$work/longest")" \
    "$(median <"$work/longest")" "$(tail -n 1 "$work/longest")"
}

case ${1:-} in
  latency) measure_latency "${@:2}" ;;
  throughput) measure_throughput "${@:2}" ;;
  demo) show_demo "${@:2}" ;;
  *) die "no figures \"${1:-}\"" ;;
esac
