#!/usr/bin/env bash
# nvmed.sh TEST ARGUMENTS: the kernel's NVMe host on rxe0 against nvmed, of either kind, which is upgraded and killed.
# MODE and BACKING are start_nvmed's. In the peer's machine, at 10.0.0.2, this is wire_peer. Each test is a function,
# followed by what it alone calls. A test with a SEED is random, and says which one it has taken.
set -euo pipefail
# shellcheck source=tests/vm/nvmed_common.sh
source "$(dirname "$0")/nvmed_common.sh"

# writes MODE BACKING UPGRADES KILLS [SEED [JOB_MIB]]: the host writes while nvmed is upgraded, and its owner killed, in
# random order at random moments; then all is there that was written, and the host has noticed nothing. Each of fio's
# four jobs writes JOB_MIB (8) MiB in a pass.
test_writes() {
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
}

# hosts MODE BACKING UPGRADES KILLS [SEED]: three controllers with eight I/O queues each at once, as 24 hosts have;
# nvmed is upgraded and its owner killed while fio writes to all three; all is there then.
test_hosts() {
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
  for ((i = 1; i <= subsystems; ++i)); do disconnect_host "$nqn$i"; done
  blackouts
}

# errors MODE: what the host is told when the file of a name space finds no room, and when blocks of a disk are bad:
# that command fails, and no other, also after nvmed was killed.
test_errors() {
  subsystems=2

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
}

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

# files MODE BACKING MIB KILLS [SEED]: a file system on nvmed, into which a tree of MIB MiB is copied while nvmed's
# owner is killed at random moments; what is read back, past all caches, is what was copied, and the file system is
# clean.
test_files() {
  mib=$3 kills=$4 seed=${5:-$RANDOM}
  RANDOM=$seed
  say "seed $seed"
  disk_mib=$((mib * 3 / 2 + 32))
  buffer_mib=$((disk_mib + 96))

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
  # The owner is killed $kills times, one time after the other, while files are copied. They are copied again if kills
  # are left when all is copied.
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
}

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
copy() {
  mkfs.ext4 -q "$device"
  mount "$device" /run/mounted
  cp -a /dev/shm/tree /run/mounted
  sync
}

# wire MODE BACKING UPGRADES KILLS [SEED]: nvmed, upgraded and killed, while the NVMe host of another machine, which is
# wire_peer, writes to it over the wire and reads what it has written.
test_wire() {
  upgrades=$3 kills=$4 seed=${5:-$RANDOM}
  RANDOM=$seed
  say "seed $seed"

  prefer_the_device
  count_timers
  load_nvme
  mark_kernel_log
  start_nvmed "$1" "$2"
  # The peer connects when it may begin.
  coproc nc { exec busybox nc -l -p "$report_port"; }
  # shellcheck disable=SC2154  # of coproc, which takes them back when it ends
  exec {from_peer}<&"${nc[0]}" {to_peer}>&"${nc[1]}"

  await writing
  disturb_nvmed "$upgrades" "$kills"
  echo "disturbed" >&"$to_peer"
  await "statistics: "
  { statistics && echo "${line#statistics: }"; } >"$work/statistics"
  [[ $(grep -c '^link rxe0/1 ' "$work/statistics") -eq 2 ]] || die "the peer has no statistics"
  check_counters <"$work/statistics" || die "the devices lost something, or were not ready"
  await "all found"
  kernel_log | check_kernel_log || die "the kernel's log tells of trouble"
  blackouts
}

# await PREFIX: the peer's next line that begins so, in $line; those before it are shown.
await() {
  until read -ru "$from_peer" line || die "the peer has gone"; [[ $line == "$1"* ]]; do echo "$line"; done
}

# wire_peer: the NVMe host of wire: writes and reads until nvmed has been disturbed.
wire_peer() {
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
}

if [[ $BATON_VM_ADDRESS == 10.0.0.2 ]]; then
  wire_peer
  exit
fi
case ${1:-} in
  writes) test_writes "${@:2}" ;;
  hosts) test_hosts "${@:2}" ;;
  errors) test_errors "${@:2}" ;;
  files) test_files "${@:2}" ;;
  wire) test_wire "${@:2}" ;;
  *) die "no test \"${1:-}\"" ;;
esac
