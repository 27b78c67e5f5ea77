#!/usr/bin/env bash
# nvmed_demo.sh MODE UPGRADES KILLS RESTARTS SEED: the kernel's NVMe host has a file system on nvmed. fio writes
# to one file and verifies what it wrote, and times blocks of 4 KiB in another, while nvmed is upgraded and
# killed. Then the same on the kernel's own target, while that is restarted. What it prints is for people;
# the blocks' latencies and the windows of the events are left in the results, for the picture.
set -euo pipefail
# shellcheck source=tests/vm/nvmed_common.sh
source "$(dirname "$0")/nvmed_common.sh"
mode=$1 upgrades=$2 kills=$3 restarts=$4
RANDOM=$5
disk_mib=96
kernels=nqn.2014-08.org.example:kernel

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
