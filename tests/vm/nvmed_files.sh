#!/usr/bin/env bash
# nvmed_files.sh MODE BACKING MIB KILLS [SEED]: a file system on nvmed, into which a tree of MIB MiB is
# copied while nvmed's owner is killed at random moments; what is read back, past all caches, is what was
# copied, and the file system is clean.
set -euo pipefail
# shellcheck source=tests/vm/nvmed_common.sh
source "$(dirname "$0")/nvmed_common.sh"
mib=$3 kills=$4 seed=${5:-$RANDOM}
RANDOM=$seed
say "seed $seed"
disk_mib=$((mib * 3 / 2 + 32))
buffer_mib=$((disk_mib + 96))

# Files of 1 KiB to 4 MiB in directories, and links.
make_tree() {
  local directory=0 bytes=0 size count=0
  while ((bytes < mib << 20)); do
    if ((count++ % 32 == 0)); then mkdir -p "$1/$((++directory))"; fi
    size=$(((RANDOM * 32768 + RANDOM) % (RANDOM % 8 ? 65536 : 4194304) + 1024))
    head -c "$size" /dev/urandom >"$1/$directory/$count"
    bytes=$((bytes + size))
  done
  ln -s 1 "$1/link"
}

prefer_the_device
count_timers
load_nvme
start_nvmed "$1" "$2"
make_tree /dev/shm/tree
say "$(find /dev/shm/tree -type f | wc -l) files"
mark_kernel_log
connect_host "$nqn" "$port" -i 4
wait_device "$nqn"

mkdir /run/mounted
copy() {
  mkfs.ext4 -q "$device"
  mount "$device" /run/mounted
  cp -a /dev/shm/tree /run/mounted
  sync
}
# As many kills as there are, one after the other, until all is copied and again if it has to be.
made=0
while ((made < kills)); do
  copy &
  copying=$!
  while kill -0 "$copying" 2>/dev/null && ((made < kills)); do
    pause "0.$((RANDOM % 10))"
    kill_nvmed
    made=$((made + 1))
  done
  wait "$copying" || die "the copy failed"
  [[ $made -eq $kills ]] || umount /run/mounted
done
echo 3 >/proc/sys/vm/drop_caches
diff -r --no-dereference /dev/shm/tree /run/mounted/tree || die "files are not what was copied"
umount /run/mounted
fsck.ext4 -fn "$device" >"$work/fsck" 2>&1 || die "fsck: $(cat "$work/fsck")"
say "$(tail -n 1 "$work/fsck")"
kernel_log | check_kernel_log || die "the kernel's log tells of trouble"
statistics | check_counters || die "the device lost something, or was not ready"
blackouts
