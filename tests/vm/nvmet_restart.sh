#!/usr/bin/env bash
# nvmet_restart.sh [REPEATS [SECONDS]]: what the kernel's own NVMe target does on rxe0, for others to be
# compared with: how long its host's I/O stands still when the target is restarted (5 times), and how
# fast it is (each for 5 s), with a disk in memory and with a file in memory. Decides nothing.
#
# A restart here takes no time: the target's port is taken away, which ends all queues, and is there
# again at once. The host asks for it again after a second, the shortest that there is.
set -euo pipefail
# shellcheck source=tests/vm/nvme_common.sh
source "$(dirname "$0")/nvme_common.sh"
repeats=${1:-5} seconds=${2:-5} mib=64

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
