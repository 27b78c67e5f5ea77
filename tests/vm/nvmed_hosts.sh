#!/usr/bin/env bash
# nvmed_hosts.sh MODE BACKING UPGRADES KILLS [SEED]: three controllers with eight I/O queues each at once, as
# 24 hosts have; nvmed is upgraded and its owner killed while fio writes to all three; all is there then.
set -euo pipefail
# shellcheck source=tests/vm/nvmed_common.sh
source "$(dirname "$0")/nvmed_common.sh"
upgrades=$3 kills=$4 seed=${5:-$RANDOM}
RANDOM=$seed
say "seed $seed"
disk_mib=32 buffer_mib=256 connections=32 subsystems=3

prefer_the_device
count_timers
load_nvme
start_nvmed "$1" "$2"
mark_kernel_log
devices=()
for ((i = 1; i <= subsystems; ++i)); do
  # Queues for reads and queues for writes: a machine with four processors has eight.
  connect_host "$nqn$i" "$port" -i 4 -W 4
  wait_device "$nqn$i"
  [[ $(<"$controller/queue_count") -eq 9 ]] || die "$(<"$controller/queue_count") queues, not 9"
  devices+=("$device")
done
disturb_nvmed "$upgrades" "$kills" keep_writing
finish_writing
say "$pass passes of fio"
kernel_log | check_kernel_log || die "the kernel's log tells of trouble"
statistics | check_counters || die "the device lost something, or was not ready"
blackouts
