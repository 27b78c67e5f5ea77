#!/usr/bin/env bash
# nvmed_wire_peer.sh: the NVMe host of nvmed_wire.sh: writes and reads until nvmed has been disturbed.
set -euo pipefail
# shellcheck source=tests/vm/nvme_common.sh
source "$(dirname "$0")/nvme_common.sh"
nqn=nqn.2014-08.org.example:baton port=4420 report_port=7000

prefer_the_device
count_timers
load_nvme
exec 3>/dev/null
until { exec 3<>"/dev/tcp/10.0.0.1/$report_port"; } 2>/dev/null; do pause 0.5; done
mark_kernel_log
BATON_VM_ADDRESS=10.0.0.1 connect_host "$nqn" "$port" -i 4
wait_device "$nqn"
before=$(<"$controller/cntlid")
echo "writing" >&3

pass=0 word=''
until [[ $word == disturbed ]]; do
  pass=$((pass + 1)) depth=$((pass % 2 ? 1 : 8))
  write_blocks write "$device" "$depth" "$pass"
  verify_blocks verify "$device" "$depth" "$pass" ||
    die "in pass $pass, at depth $depth, fio does not read what it wrote: $(cat "$work/verify.fio")"
  read -rt 0.1 -u 3 word || true
done
echo "$pass passes of fio" >&3
[[ $(<"$controller/cntlid") == "$before" ]] || die "the host has another controller"
kernel_log | check_kernel_log >&3 || die "the kernel's log tells of trouble"
statistics | sed 's/^/statistics: /' >&3
disconnect_host "$nqn"
echo "all found" >&3
# The other machine's end is this one's.
pause 600
