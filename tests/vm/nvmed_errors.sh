#!/usr/bin/env bash
# nvmed_errors.sh MODE: what Linux's NVMe host is told when the file of a name space finds no room, and when
# blocks of a disk are bad: that command fails, and no other, also after nvmed was killed.
set -euo pipefail
# shellcheck source=tests/vm/nvmed_common.sh
source "$(dirname "$0")/nvmed_common.sh"
subsystems=2

# put DEVICE BLOCK, get DEVICE BLOCK: 4 KiB.
put() { dd if=/dev/urandom of="$1" bs=4k count=1 seek="$2" oflag=direct status=none; }
get() { dd if="$1" of=/dev/null bs=4k count=1 skip="$2" iflag=direct status=none; }
# fails_with ERROR COMMAND...
fails_with() {
  ! "${@:2}" 2>"$work/error" || die "\"${*:2}\" does not fail"
  grep -qF "$1" "$work/error" || die "\"${*:2}\", not with \"$1\": $(<"$work/error")"
}
# try_errors BLOCK: all of what is wrong, and that nothing else is. BLOCK of the file was never written.
try_errors() {
  local block
  dd if=/dev/zero of=/run/full/rest bs=4k status=none 2>"$work/rest" || true  # until there is no room
  fails_with "No space left on device" put "$full" "$1"
  put "$full" 1  # that it has already
  get "$full" "$1"
  rm /run/full/rest
  put "$full" "$1"
  # What Linux calls a medium error, of reads and of writes.
  for block in 8192 8255; do
    fails_with "No data available" get "$bad" "$block"
    fails_with "No data available" put "$bad" "$block"
  done
  put "$bad" 8191
  get "$bad" 8256
}

prefer_the_device
count_timers
load_nvme
start_nvmed "$1" failing
mark_kernel_log
connect_host "${nqn}1" "$port" -i 4
wait_device "${nqn}1"
full=$device first=$(<"$controller/cntlid")
connect_host "${nqn}2" "$port" -i 4
wait_device "${nqn}2"
bad=$device

put "$full" 1
try_errors 300
kill_nvmed
try_errors 301
job_mib=4
write_blocks written "$bad" 8 1
verify_blocks verified "$bad" 8 1 || die "fio does not read what it wrote: $(<"$work/verified.fio")"

kernel_log >"$work/kernel.log"
check_kernel_log '(critical (space allocation|medium) error|I/O error), dev (nvme|nullb)|nvme[0-9c]+n1: I/O Cmd[(]' \
  <"$work/kernel.log" || die "the kernel's log tells of more than bad blocks"
grep -q 'critical space allocation error' "$work/kernel.log" || die "no room was not told as such"
grep -q 'critical medium error' "$work/kernel.log" || die "a bad block was not told as such"
statistics | check_counters || die "the device lost something, or was not ready"
controller_of "${nqn}1"
[[ $(<"$controller/cntlid") == "$first" ]] || die "the host has another controller"
say "no room, bad blocks: those commands failed, and no others"
