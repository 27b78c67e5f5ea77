#!/usr/bin/env bash
# nvmet.sh TEST ARGUMENTS: the kernel's own NVMe target on rxe0, and its host. Each test is a function, followed by what
# it alone calls.
set -euo pipefail
# shellcheck source=tests/vm/nvme_common.sh
source "$(dirname "$0")/nvme_common.sh"

# baseline: what tests of an NVMe target in this machine stand on: the host connects with as many queues as asked for,
# what fio and a file system write is what they read later, a block that is corrupt, stale or misplaced is found, and
# what the kernel says of trouble is found.
test_baseline() {
  nqn=nqn.2014-08.example:baseline port=4420

  test_kernel_log_checker
  test_latency_log
  prefer_the_device
  count_timers
  load_nvme
  make_ram_disk 64
  make_target "$nqn" /dev/ram0 "$port"
  mark_kernel_log
  connect_host "$nqn" "$port" -i 4 -Q 64
  wait_device "$nqn"
  say "$device: $(<"$controller/queue_count") queues of $(($(<"$controller/sqsize") + 1))"
  [[ $(<"$controller/queue_count") -eq 5 && $(<"$controller/sqsize") -eq 63 ]] ||
    die "neither four queues and the admin queue, nor of depth 64"

  job_mib=4
  for depth in 1 8; do
    write_blocks written "$device" "$depth" "$depth"
    verify_blocks verified "$device" "$depth" "$depth" ||
      die "at depth $depth, fio does not read what it wrote: $(<"$work/verified.fio")"
  done
  say "what fio wrote is there"

  # In the middle of three of the ranges.
  # shellcheck disable=SC2034  # by their names
  corrupt=$((job_mib * 384)) misplaced=$((job_mib * 640)) stale=$((job_mib * 896))
  get "$stale" >"$work/stale"
  write_blocks written "$device" 8 9
  get "$corrupt" >"$work/corrupt"
  printf corrupt | dd of="$work/corrupt" bs=1 seek=1717 conv=notrunc status=none
  get 0 >"$work/misplaced"
  for bad in corrupt misplaced stale; do put "$work/$bad" "${!bad}"; done
  ! verify_blocks verified "$device" 8 9 || die "fio is content with bad blocks"
  for bad in corrupt misplaced stale; do
    grep -E "(verify failed|bad header) .* offset $((${!bad} * 4096)), " "$work/verified.fio" ||
      die "a block that is $bad is not found: $(<"$work/verified.fio")"
  done
  say "bad blocks are found"

  mkfs.ext4 -q "$device"
  mkdir "$work/files"
  mount "$device" "$work/files"
  cp -r "$(dirname "$0")" "$work/files"
  umount "$work/files"
  fsck.ext4 -fn "$device" >"$work/fsck" 2>&1 || die "fsck: $(cat "$work/fsck")"
  mount "$device" "$work/files"
  diff -r "$(dirname "$0")" "$work/files/$(basename "$(dirname "$0")")" || die "files are not what was copied"
  umount "$work/files"
  say "a file system: $(tail -n 1 "$work/fsck")"

  kernel_log | check_kernel_log || die "the kernel's log tells of trouble"
  statistics | check_counters || die "the device lost something, or was not ready"

  # A target that goes and comes is trouble, and the host finds it again.
  restart_target "$nqn" "$port"
  ! kernel_log | check_kernel_log >"$work/trouble" || die "the end of a target is not seen in the kernel's log"
  grep -q 'Reconnecting in 1 seconds' "$work/trouble" || die "the reconnect is not seen: $(cat "$work/trouble")"
  cat "$work/trouble"
  get 0 >/dev/null
  disconnect_host "$nqn"
  say "$(free -m | awk '/^Mem:/ { print $3 " MiB in use, " $6 " MiB cached" }')"
}

# put FILE PLACE, get PLACE: in blocks of 4 KiB.
put() { dd if="$1" of="$device" bs=4k count=1 seek="$2" oflag=direct status=none; }
get() { dd if="$device" bs=4k count=1 skip="$1" iflag=direct status=none; }

# restart [REPEATS [SECONDS]]: what the target does, for others to be compared with: how long its host's I/O stands
# still when the target is restarted (5 times), and how fast it is (each for 5 s), with a disk in memory and with a file
# in memory. Decides nothing.
#
# A restart here takes no time: the target's port is taken away, which ends all queues, and is there again at once. The
# host asks for it again after a second, the shortest that there is.
measure_restart() {
  repeats=${1:-5} seconds=${2:-5} mib=64

  prefer_the_device
  count_timers
  load_nvme
  make_ram_disk "$mib"
  truncate -s "${mib}M" /dev/shm/disk
  port=4420
  for disk in /dev/ram0 /dev/shm/disk; do
    nqn=nqn.2014-08.example:${disk##*/}
    make_target "$nqn" "$disk" "$port"
    connect_host "$nqn" "$port" -i 4 -Q 128
    wait_device "$nqn"
    echo "$disk: $device"
    # All of it is there, for reads not to be of nothing.
    run_fio fill --filename="$device" --rw=write --bs=128k --iodepth=8 || die "fio: $(cat "$work/fill.fio")"
    for access in "randread 4k" "read 128k" "write 128k"; do
      # shellcheck disable=SC2086  # two words
      echo "$disk: $access at depth 8: $(throughput "$device" $access "$seconds") (IOPS, MiB/s)"
    done
    statistics | check_counters || die "the device lost something, or was not ready"
    restarts "$nqn" "$port" "$device"
    disconnect_host "$nqn"
    port=$((port + 1))
  done
}

# restarts NQN PORT DEVICE: while blocks of 4 KiB are read and written, one at a time.
restarts() {
  local i from to log=$work/steady_lat.1.log
  windows=()
  start_steady_io steady "$3" randrw 500
  pause 1
  for ((i = 0; i < repeats; ++i)); do
    in_window restart restart_target "$1" "$2"
    pause 2
  done
  end_steady_io steady
  kernel_log
  longest_of restart "$log" >"$work/longest"
  read -r from to _ <<<"${windows[-1]}"
  time_line "$log" "$from" "$((to + 2000))" 250
  echo "$disk: longest I/O of each restart, ms: $(tr '\n' ' ' <"$work/longest"); median $(median <"$work/longest")"
}

case ${1:-} in
  baseline) test_baseline "${@:2}" ;;
  restart) measure_restart "${@:2}" ;;
  *) die "no test \"${1:-}\"" ;;
esac
