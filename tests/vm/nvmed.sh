#!/usr/bin/env bash
# nvmed.sh MODE BACKING UPGRADES KILLS [SEED [JOB_MIB]]: the kernel's NVMe host on rxe0 writes to nvmed (MODE
# and BACKING are start_nvmed's), which is upgraded, and whose owner is killed, in random order at random
# moments; then all is there that was written, and the host has noticed nothing. Each of fio's four jobs
# writes JOB_MIB (8) MiB in a pass.
set -euo pipefail
# shellcheck source=tests/vm/nvmed_common.sh
source "$(dirname "$0")/nvmed_common.sh"
upgrades=$3 kills=$4 seed=${5:-$RANDOM} job_mib=${6:-8}
disk_mib=$((jobs * job_mib + 32))
buffer_mib=$((disk_mib + 128))
RANDOM=$seed
say "seed $seed"

prefer_the_device
count_timers
load_nvme
start_nvmed "$1" "$2"
mark_kernel_log
connect_host "$nqn" "$port" -i 4
wait_device "$nqn"
before=$(<"$controller/cntlid")

disturb_nvmed "$upgrades" "$kills" keep_writing
finish_writing
say "$pass passes of fio"
[[ $(<"$controller/cntlid") == "$before" ]] || die "the host has another controller"
kernel_log | check_kernel_log || die "the kernel's log tells of trouble"
statistics | check_counters || die "the device lost something, or was not ready"
disconnect_host "$nqn"
blackouts
