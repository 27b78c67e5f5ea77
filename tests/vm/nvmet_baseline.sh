#!/usr/bin/env bash
# What tests of an NVMe target in this machine stand on, with the kernel's own target on rxe0: its host
# connects with as many queues as asked for, what fio and a file system write is what they read later,
# a block that is corrupt, stale or misplaced is found, and what the kernel says of trouble is found.
set -euo pipefail
# shellcheck source=tests/vm/nvme_common.sh
source "$(dirname "$0")/nvme_common.sh"
nqn=nqn.2014-08.example:baseline port=4420

test_kernel_log_checker
test_latency_log
prefer_the_device
count_timers
load_nvme
make_ram_disk 64
make_target "$nqn" /dev/ram0 "$port"
mark_kernel_log
connect_host "$nqn" "$port" -i 4 -Q 64 -k 30
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

# put FILE PLACE, get PLACE: in blocks of 4 KiB.
put() { dd if="$1" of="$device" bs=4k count=1 seek="$2" oflag=direct status=none; }
get() { dd if="$device" bs=4k count=1 skip="$1" iflag=direct status=none; }

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
