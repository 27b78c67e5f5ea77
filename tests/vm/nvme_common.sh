#!/usr/bin/env bash
# The kernel's NVMe host over rxe0 with Debian's nvme and fio, and the kernel's own target for it; to
# be sourced. A host has as many queues as the machine has processors, and no more.
set -euo pipefail
# shellcheck source=tests/vm/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
# shellcheck source=tests/vm/rxe_common.sh
source "$(dirname "${BASH_SOURCE[0]}")/rxe_common.sh"

# Less than the machine's time, so that what the kernel has said is shown.
# shellcheck disable=SC2034  # of wait_for
patience=60
host_nqn=nqn.2014-08.org.nvmexpress:uuid:0f01fb42-9f7f-4856-b0b3-51e60b8de349
host_id=0f01fb42-9f7f-4856-b0b3-51e60b8de349

dump() { dmesg | tail -n 60 >&2; }
# shellcheck disable=SC2317  # by the trap
end() {
  [[ $1 -ne 0 ]] || return 0
  dump
  { kernel_log | has_replayed && statistics | lost_nothing; } || exit "$1"
  echo "${0##*/}: the host's own Soft-RoCE has ended a queue, so nothing is known of its target" >&2
  exit "$undecided"
}
trap 'end $?' EXIT

# ---------------------------------------------------------------- the kernel's target

nvmet=/sys/kernel/config/nvmet

# load_nvme: host and target of the kernel.
load_nvme() {
  modprobe -a nvme-rdma nvmet-rdma
  [[ -d $nvmet ]] || mount -t configfs none /sys/kernel/config
}
# make_ram_disk MIB: /dev/ram0.
make_ram_disk() { modprobe brd rd_nr=1 "rd_size=$(($1 * 1024))"; }

# make_target NQN FILE PORT: FILE, a block device or one in memory, as name space 1 of NQN.
make_target() {
  local subsystem=$nvmet/subsystems/$1 port=$nvmet/ports/$3
  mkdir "$subsystem" "$subsystem/namespaces/1"
  echo 1 >"$subsystem/attr_allow_any_host"
  echo "$2" >"$subsystem/namespaces/1/device_path"
  # A file on tmpfs cannot be opened without the page cache.
  [[ -b $2 ]] || echo 1 >"$subsystem/namespaces/1/buffered_io"
  echo 1 >"$subsystem/namespaces/1/enable"
  mkdir -p "$port"
  echo ipv4 >"$port/addr_adrfam"
  echo rdma >"$port/addr_trtype"
  echo "$BATON_VM_ADDRESS" >"$port/addr_traddr"
  echo "$3" >"$port/addr_trsvcid"
  serve_target "$1" "$3"
}
# serve_target NQN PORT, withhold_target NQN PORT: listens there, ends all of its controllers.
serve_target() { ln -s "$nvmet/subsystems/$1" "$nvmet/ports/$2/subsystems/$1"; }
withhold_target() { rm "$nvmet/ports/$2/subsystems/$1"; }
# restart_target NQN PORT: gone, which ends all of its queues, and there again at once; returns when the
# host, the only one, has its controller back.
restart_target() {
  mark_kernel_log
  withhold_target "$@"
  serve_target "$@"
  wait_for "the host to be back" is_back
}
# shellcheck disable=SC2317  # wait_for calls it
is_back() { kernel_log | grep 'Successfully reconnected' >/dev/null; }

# ---------------------------------------------------------------- the host

# connect_host NQN PORT [FLAGS]: FLAGS are of `nvme connect`: -i QUEUES -Q DEPTH and others.
# A target that is gone is asked for again every second for ten minutes. The host waits 30 s for signs of life, and not
# the usual 5 s: the machine may stand still for longer, beside another one.
connect_host() {
  nvme connect -t rdma -a "$BATON_VM_ADDRESS" -s "$2" -n "$1" --hostnqn "$host_nqn" \
    --hostid "$host_id" -c 1 -l 600 -k 30 "${@:3}" >"$work/connect" 2>&1 ||
    die "nvme connect: $(<"$work/connect")"
}

# controller_of NQN: of /sys/class/nvme, in $controller. Starts no process.
controller_of() {
  local directory
  for directory in /sys/class/nvme/nvme*; do
    [[ -e $directory/subsysnqn && $(<"$directory/subsysnqn") == "$1" ]] || continue
    controller=$directory
    return 0
  done
  return 1
}
# has_device NQN: it has a controller that lives, and the block device of its name space is $device.
has_device() {
  local found subsystem
  controller_of "$1" && [[ $(<"$controller/state") == live ]] || return 1
  for subsystem in /sys/class/nvme-subsystem/*; do
    [[ ! -e $subsystem/${controller##*/} ]] || break
  done
  # Below the subsystem where controllers may share its name space, and below the only one else.
  for found in "$subsystem"/nvme*n* "$controller"/nvme*n*; do
    [[ $found =~ /(nvme[0-9]+n[0-9]+)$ && -b /dev/${BASH_REMATCH[1]} ]] || continue
    # shellcheck disable=SC2034  # by who calls
    device=/dev/${BASH_REMATCH[1]}
    return 0
  done
  return 1
}
wait_device() { wait_for "the block device of $1" has_device "$1"; }

disconnect_host() {
  nvme disconnect -n "$1" >"$work/disconnect" 2>&1 || die "nvme disconnect: $(<"$work/disconnect")"
  ! controller_of "$1" || die "$1 still has a controller"
}

# ---------------------------------------------------------------- the kernel's log

# mark_kernel_log: what is told from here on is what kernel_log prints. Another script of this machine has marks, too.
marks=0
mark_kernel_log() {
  marks=$((marks + 1))
  echo "nvme_common: mark $$.$marks" >/dev/kmsg
}
# Fails when the mark is not there any more, so that nothing can be said.
kernel_log() { dmesg | since_mark "nvme_common: mark $$.$marks"; }
since_mark() { awk -v mark="$1" 'found; index($0, mark) { found = 1 } END { exit !found }'; }

# check_kernel_log [EXPECTED] <LINES: nothing in the kernel's log tells of trouble. Of NVMe and Soft-RoCE
# that is every line that does not belong to the making and the end of a controller or a target, and is
# not EXPECTED (a regular expression); of others what they say when something fails. Prints those lines.
check_kernel_log() {
  awk -v expected="${1:-^$}" '
    $0 ~ expected { next }
    /nvme nvme[0-9]+: (creating [0-9]+ I\/O queues|mapped [0-9\/]+ default|new ctrl: |Removing ctrl: )/ { next }
    /nvmet: (adding nsid |creating (nvm|discovery) controller )/ { next }
    /nvmet_rdma: enabling port / { next }
    /rdma_rxe: loaded|rxe0: added / { next }
    /EXT4-fs \(nvme[^)]*\): (mounted filesystem |unmounting filesystem)/ { next }
    /nvme|rxe|rdma|infiniband|EXT4-fs|JBD2/ ||
    /I\/O error|time-?d?[ -]?out|not free|BUG|WARNING|Oops|Call Trace|blocked for more than|stall|lockup/ ||
    /protection fault|allocation failure|[Oo]ut of memory|refcount_t|corrupt/ { print; found = 1 }
    END { exit found }'
}

# has_replayed <LINES: Soft-RoCE of Linux 6.1 has failed by itself. When a timer for acknowledgements ends (see
# check_counters), req_retry() in rxe_req.c does registrations of memory once more that were done already; the second one
# fails, and the host's queue with it.
has_replayed() { grep 'rdma_rxe: rxe_reg_fast_mr: mr->lkey = .* not free' >/dev/null; }

# The checker finds what it is for.
test_kernel_log_checker() {
  local good=(
    'nvmet: adding nsid 1 to subsystem nqn.2014-08.example:a'
    'nvmet_rdma: enabling port 4420 (10.0.0.1:4420)'
    'nvmet: creating nvm controller 1 for subsystem nqn.2014-08.example:a for NQN nqn.2014-08.example:h.'
    'nvme nvme0: creating 4 I/O queues.'
    'nvme nvme0: mapped 4/0/0 default/read/poll queues.'
    'nvme nvme0: new ctrl: NQN "nqn.2014-08.example:a", addr 10.0.0.1:4420'
    'nvme nvme0: Removing ctrl: NQN "nqn.2014-08.example:a"'
    'EXT4-fs (nvme0n1): mounted filesystem with ordered data mode. Quota mode: none.'
    'random: crng init done'
  )
  printf '[    1.000000] %s\n' "${good[@]}" >"$work/good"
  ! has_replayed <"$work/good" || die "a registration is said to be done twice where none was"
  sed 's/^/[    1.000000] /' >"$work/bad" <<'LINES'
nvme nvme0: Reconnecting in 1 seconds...
nvme nvme0: Successfully reconnected (1 attempts)
nvme nvme0: starting error recovery
nvme nvme0: I/O 5 QID 1 timeout
nvme nvme0: RECV for CQE 0x00000000a1c4e4f1 failed with status WR flushed (5)
nvme nvme0: failed nvme_keep_alive_end_io error=10
nvme nvme0: Connect rejected: status 8 (invalid service ID).
nvme nvme0: rdma connection establishment failed (-104)
nvme nvme0: queue_size 128 > ctrl sqsize 32, clamping down
nvme0n1: Write(0x1) @ LBA 8, 8 blocks, Internal Error (sct 0x0 / sc 0x6)
block nvme0n1: no usable path - requeuing I/O
nvmet: ctrl 1 keep-alive timer (5 seconds) expired!
nvmet: ctrl 1 fatal error occurred!
nvmet_rdma: SEND for CQE 0x00000000a1c4e4f1 failed with status WR flushed (5).
rdma_rxe: rxe_reg_fast_mr: mr->lkey = 0x1f3a not free
I/O error, dev nvme0n1, sector 8 op 0x1:(WRITE) flags 0x8800 phys_seg 1 prio class 2
EXT4-fs error (device nvme0n1): ext4_lookup:1855: inode #2: comm ls: deleted inode referenced: 12
INFO: task fio:400 blocked for more than 120 seconds.
WARNING: CPU: 0 PID: 12 at drivers/infiniband/sw/rxe/rxe_comp.c:750 rxe_completer+0x1/0x2
rcu: INFO: rcu_preempt self-detected stall on CPU
LINES
  check_kernel_log <"$work/good" >/dev/null || die "the checker of the kernel's log refuses what is right"
  ! cat "$work/good" "$work/bad" "$work/good" | check_kernel_log >"$work/seen" ||
    die "the checker of the kernel's log is content"
  diff "$work/bad" "$work/seen" >&2 || die "the checker of the kernel's log does not see those lines"
  has_replayed <"$work/bad" || die "a registration that is done twice is not seen"
  diff <(printf '%s\n' before mark after | since_mark mark) <(echo after) >&2 ||
    die "what follows the mark is not what is told"
  ! printf '%s\n' before after | since_mark mark >/dev/null || die "a mark that is gone is not missed"
  ! check_kernel_log 'Reconnecting|recovery' <"$work/bad" >"$work/seen" ||
    die "the checker of the kernel's log takes what is not expected"
  diff <(sed 1d "$work/bad" | grep -v recovery) "$work/seen" >&2 ||
    die "the checker of the kernel's log does not see what is expected"
}

# ---------------------------------------------------------------- fio

# run_fio NAME FLAGS: what it found is what `found NAME FILTER` prints, by jq.
run_fio() {
  fio --name="$1" --output-format=json --output="$work/$1.json" --ioengine=libaio --direct=1 \
    --group_reporting "${@:2}" >"$work/$1.fio" 2>&1
}
found() { sed -n '/^{/,$p' "$work/$1.json" | jq -r "$2"; }

# Blocks of 4 KiB to 128 KiB at random places, each written once, by $jobs at a time, each in a range of
# its own of $job_mib MiB, one after the other from the start of the device. Every 4 KiB have a header
# with their place and checksum: another run of fio, of the same ROUND, checks who has them. It does not
# compare with what it would write itself, so the kind of checksum is that of the round: data of the
# three rounds before are wrong, and so is nothing at all. What is older is not found.
#   write_blocks NAME DEVICE DEPTH ROUND
#   verify_blocks NAME DEVICE DEPTH ROUND: writes nothing. Fails where data are others or none.
jobs=4 job_mib=8
checksums=(crc32c xxhash crc64 crc32)
blocks() {
  run_fio "$1" --filename="$2" --iodepth="$3" --randseed="$4" --rw=randwrite --bsrange=4k-128k \
    --numjobs="$jobs" --size="${job_mib}M" --offset_increment="${job_mib}M" \
    --verify="${checksums[$4 % 4]}" --verify_state_save=0 --verify_fatal=1 "${@:5}"
}
write_blocks() {
  blocks "$@" --do_verify=0 || die "fio cannot write: $(<"$work/$1.fio")"
  check_moved "$1" write
}
verify_blocks() {
  blocks "$@" --verify_only && check_moved "$1" read
}
# check_moved NAME read|write: all of the ranges.
check_moved() {
  local bytes
  bytes=$(found "$1" ".jobs[0].$2.io_bytes")
  [[ $bytes -eq $((jobs * job_mib << 20)) ]] || die "fio: $2 $bytes bytes in $1, not those of $jobs jobs"
}

# throughput DEVICE RW BLOCK_SIZE SECONDS: "IOPS MiB/s" at depth 8.
throughput() {
  run_fio throughput --filename="$1" --rw="$2" --bs="$3" --iodepth=8 --time_based --runtime="$4" \
    --norandommap || die "fio: $(<"$work/throughput.fio")"
  found throughput '.jobs[0] | [.read, .write] |
    "\(map(.iops) | add | round) \(map(.bw_bytes) | add / 1048576 | round)"'
}

# start_steady_io NAME DEVICE RW IOPS: blocks of 4 KiB, one at a time, so many per second at most, until
# end_steady_io NAME. Then $work/NAME_lat.1.log has a line for each, of when it ended (ms of
# EPOCHREALTIME) and how long it took (ns). There are some when it returns.
declare -A steady_io=()
packets=/sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts
start_steady_io() {
  local before
  before=$(<"$packets")
  run_fio "$1" --filename="$2" --rw="$3" --rate_iops="$4" --bs=4k --iodepth=1 --time_based \
    --runtime=1d --norandommap --write_lat_log="$work/$1" --log_unix_epoch=1 &
  steady_io[$1]=$!
  wait_for "blocks to be on their way" has_sent $((before + 200))
}
# shellcheck disable=SC2317  # wait_for calls it
has_sent() { [[ $(<"$packets") -ge $1 ]]; }
# Its status says that it was asked to end; fails when it met an error before.
end_steady_io() {
  local pid=${steady_io[$1]} error
  kill -TERM "$(<"/proc/$pid/task/$pid/children")" || die "fio has ended: $(<"$work/$1.fio")"
  wait "$pid" || true
  error=$(found "$1" '.jobs[0].error')
  [[ $error == 0 ]] || die "fio: error $error in $1: $(<"$work/$1.fio")"
}

# now VARIABLE: in ms, as in the log. Starts no process.
now() { printf -v "$1" '%d' $((${EPOCHREALTIME//[^0-9]/} / 1000)); }
# longest_latency LOG FROM TO: of the blocks that were under way between those times, in ms.
longest_latency() {
  awk -F ', *' -v from="$2" -v to="$3" '
    $1 >= from && $1 - $2 / 1e6 <= to { ++count; if ($2 > longest) longest = $2 }
    END { if (count) printf "%.1f\n", longest / 1e6; exit !count }' "$1"
}
# in_window KIND COMMAND...: what happens from its start to its end; adds "FROM TO KIND" to ${windows[@]}.
windows=()
in_window() {
  local from='' to=''
  now from
  "${@:2}"
  now to
  windows+=("$from $to $1")
}
# longest_of KIND LOG: of the blocks under way in each of the windows of KIND, in ms, a line each.
longest_of() {
  local window from to kind
  for window in "${windows[@]}"; do
    read -r from to kind <<<"$window"
    [[ $kind != "$1" ]] || longest_latency "$2" "$from" "$to" || die "no block in a window of $kind"
  done
}
median() { sort -n | awk '{ of[NR] = $1 } END { print (of[int((NR + 1) / 2)] + of[int(NR / 2) + 1]) / 2 }'; }
# time_line LOG FROM TO STEP: for each STEP ms: blocks that ended, and the longest of them in ms.
time_line() {
  awk -F ', *' -v from="$2" -v to="$3" -v step="$4" '
    $1 >= from && $1 < to { at = int(($1 - from) / step); ++count[at]; if ($2 > longest[at]) longest[at] = $2 }
    END {
      for (at = 0; at * step < to - from; ++at)
        printf "%6d ms: %5d blocks, longest %.1f ms\n", at * step, count[at], longest[at] / 1e6
    }' "$1"
}

# They find what they are for.
test_latency_log() {
  printf '%s\n' '1000, 500000, 0, 4096, 0' '2500, 1400000000, 1, 4096, 0' '2600, 900000, 0, 4096, 0' \
    '4000, 3000000, 1, 4096, 0' >"$work/latencies"
  [[ $(longest_latency "$work/latencies" 1200 3000) == 1400.0 ]] || die "a block across a border is not seen"
  [[ $(longest_latency "$work/latencies" 2550 3000) == 0.9 ]] || die "blocks of other times are seen"
  ! longest_latency "$work/latencies" 3000 3900 || die "a time without blocks is not seen"
  diff <(time_line "$work/latencies" 1000 3000 1000) - >&2 <<'LINES' || die "the time line is wrong"
     0 ms:     1 blocks, longest 0.5 ms
  1000 ms:     2 blocks, longest 1400.0 ms
LINES
}
