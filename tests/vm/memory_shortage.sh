#!/usr/bin/env bash
# A control group runs out of memory, because one of its processes wants ever more. Its other processes are Baton's: a
# brokered service, and a native one. The driver of the first has the most memory of all: the kernel kills what wants more,
# and spares the driver. After that, each process of both services is offered in turn, as the first to go, and a broker
# with its twin. No peer notices.
set -euo pipefail
# shellcheck source=tests/vm/ledger_common.sh
source "$(dirname "$0")/ledger_common.sh"
# shellcheck source=tests/vm/native_common.sh
source "$(dirname "$0")/native_common.sh"

groups=$work/groups group=$work/groups/short
mkdir "$groups"
mount -t cgroup2 none "$groups"
echo +memory >"$groups/cgroup.subtree_control"
mkdir "$group"
echo 0 >"$group/memory.swap.max" 2>/dev/null || true  # kernels without swap have no such file
# in_group COMMAND...: in this shell, and what it starts is in the group.
in_group() {
  echo $$ >"$group/cgroup.procs"
  "$@"
  echo $$ >"$groups/cgroup.procs"
}
# mebibytes PID: that the process has.
mebibytes() { awk '/^VmRSS:/ { print int($2 / 1024) }' "/proc/$1/status"; }
want_ever_more() {
  tail /dev/zero &
  glutton=$!
}
# offer PID...: the kernel kills these, one after the other and nothing else, as if memory had run out.
offer() {
  local pid before
  for pid in "$@"; do
    before=$(killed)
    echo 1000 >"/proc/$pid/oom_score_adj"
    echo f >/proc/sysrq-trigger
    soon are_gone "$pid"
    [[ $(killed) -eq $((before + 1)) ]] || die "the kernel has killed $(($(killed) - before)) processes for one"
  done
}
killed() { sed -n 's/^oom_kill //p' "$group/memory.events"; }

# ask SERVICE: once it is whole, with two workers that are ready, ${pids[WHAT]} are its processes. A native service has
# no brokers: 0.
declare -A pids=()
ask() {
  wait_for "all of $1" is_whole "$1"
  read -r "pids[keeper]" "pids[driver]" "pids[driver_twin]" "pids[broker]" "pids[twin]" <"$work/pids"
  pids[owner]=$(operator worker list "$1" -o json | jq -r 'first(.workers[].worker | select(.shards != [])) | .pid')
}
is_whole() {
  operator service list -o json >"$work/services" 2>/dev/null || return 1
  jq -r --arg name "$1" '.services[] | select(.name == $name and .reachable and .ready_workers == 2)
    | select(.shards_owned == .shard_count)
    | select((.driver_twin_pid // 0) != 0 and (.native or (.broker_pid // 0) != 0 and (.twin_pid // 0) != 0))
    | "\(.keeper_pid) \(.driver_pid) \(.driver_twin_pid) \(.broker_pid // 0) \(.twin_pid // 0)"' "$work/services" >"$work/pids"
  [[ -s $work/pids ]]
}

# The device pins all buffers, which are the driver's then.
service_fields='buffer_bytes: 100663296'
worker_flags=()
more_services=$(port=7472 native_service native "$BATON_BIN/ledger-v1.so")
in_group start_batond kv rxe0
for _ in 1 2; do in_group start_worker kv "$BATON_VM_ADDRESS"; done
start_peer bystander rdma:rxe0 "$BATON_VM_ADDRESS" --connections 4 --rate 100
port=7472 start_peer native rdma:rxe0 "$BATON_VM_ADDRESS" --connections 4 --rate 100

ask kv
driver=${pids[driver]}
room=$((40 << 20))
[[ $(mebibytes "$driver") -gt $((2 * room >> 20)) ]] || die "the driver has only $(mebibytes "$driver") MiB"
echo $(($(<"$group/memory.current") + room)) >"$group/memory.max"
in_group want_ever_more
wait "$glutton" && die "it had all the memory that it wanted"
echo max >"$group/memory.max"
kill -0 "$driver" || die "the driver was killed"
say "the kernel has spared the driver, which has $(mebibytes "$driver") MiB"

ask kv
offer "${pids[broker]}" "${pids[twin]}"
for what in owner keeper driver driver_twin broker twin; do
  ask kv
  offer "${pids[$what]}"
done
for what in owner keeper driver driver_twin; do
  ask native
  offer "${pids[$what]}"
done
# Control goes first where nothing is offered, and batond starts it again. systemd would start batond again.
ask native
offer "$(pgrep -x baton-control)"
ask kv
offer "$(pgrep -x batond)"

check_peer bystander
check_peer native
start_peer newcomer rdma:rxe0 "$BATON_VM_ADDRESS"
check_peer newcomer
port=7472 start_peer newcomer rdma:rxe0 "$BATON_VM_ADDRESS"
check_peer newcomer
say "the kernel has killed $(killed) processes"
