#!/usr/bin/env bash
# nvmed_latency.sh MODE BACKING KILLS [LIMIT_MS RATIO]: while a host reads and writes blocks of 4 KiB, one at
# a time, nvmed's owner is killed; the median of the longest I/O of each kill, and the same of the kernel's
# own target when it is restarted, for a host that asks for it again every second, the shortest that there
# is. With a limit: the median is at most so long, and at most 1/RATIO of the kernel's.
set -euo pipefail
# shellcheck source=tests/vm/nvmed_common.sh
source "$(dirname "$0")/nvmed_common.sh"
kills=$3 limit=${4:-} ratio=${5:-}

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
