#!/usr/bin/env bash
# A control group runs out of memory, because one of its processes wants ever more. Its other processes are Baton's, and
# the driver has the most memory of all: the kernel kills what wants more, and spares the driver. It kills both brokers,
# too, as they are offered here. No peer notices.
set -euo pipefail
# shellcheck source=tests/vm/ledger_common.sh
source "$(dirname "$0")/ledger_common.sh"

groups=$work/groups group=$work/groups/short
mkdir "$groups"
mount -t cgroup2 none "$groups"
echo +memory >"$groups/cgroup.subtree_control"
mkdir "$group"
# in_group COMMAND...: in this shell, and what it starts is in the group.
in_group() {
  echo $$ >"$group/cgroup.procs"
  "$@"
  echo $$ >"$groups/cgroup.procs"
}
# mebibytes PID: that the process has.
mebibytes() { awk '/^VmRSS:/ { print int($2 / 1024) }' "/proc/$1/status"; }
killed() { sed -n 's/^oom_kill //p' "$group/memory.events"; }

# The device pins all buffers, which are the driver's then.
service_fields='buffer_bytes: 100663296'
in_group start_batond kv rxe0
start_worker kv "$BATON_VM_ADDRESS"
start_peer bystander rdma:rxe0 "$BATON_VM_ADDRESS" --connections 4 --rate 100
driver=$(pgrep -x baton-driver)
mapfile -t brokers < <(pgrep -x baton-broker)
[[ ${#brokers[@]} -eq 2 ]] || die "not a broker and its twin: ${brokers[*]}"

echo 0 >"$group/memory.swap.max" 2>/dev/null || true  # kernels without swap have no such file
room=$((40 << 20))
echo $(($(<"$group/memory.current") + room)) >"$group/memory.max"
[[ $(mebibytes "$driver") -gt $((2 * room >> 20)) ]] || die "the driver has only $(mebibytes "$driver") MiB"
for broker in "${brokers[@]}"; do echo 1000 >"/proc/$broker/oom_score_adj"; done
want_ever_more() {
  tail /dev/zero &
  glutton=$!
}
in_group want_ever_more
wait "$glutton" && die "it had all the memory that it wanted"
say "the kernel has killed $(killed) processes, and the driver has $(mebibytes "$driver") MiB"
for broker in "${brokers[@]}"; do
  ! kill -0 "$broker" 2>/dev/null || die "broker $broker lives"
done
[[ $(pgrep -x baton-driver) == "$driver" ]] || die "another driver: $(pgrep -x baton-driver), not $driver"
echo max >"$group/memory.max"
check_peer bystander
start_peer newcomer rdma:rxe0 "$BATON_VM_ADDRESS"
check_peer newcomer
