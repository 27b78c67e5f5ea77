#!/usr/bin/env bash
# pingd.sh PINGS PINGS_OF_EIGHT UPGRADES KILLS TEST_HOOKS_PINGD: Debian's rping and rdma_client against
# pingd on rxe0, while it is upgraded and killed: one client, then eight with their pings each, or as
# many as there are until the last kill, and some after it; every ping comes back once.
set -euo pipefail
here=$(dirname "$0")
# shellcheck source=tests/vm/pingd_common.sh
source "$here/pingd_common.sh"
pings=$1 pings_of_eight=$2 upgrades=$3 kills=$4 faulty=$5

test_checkers
prefer_the_device
count_timers
start_batond "$state"
start_pingd pingd-v1 "$state" "$BATON_VM_ADDRESS:$port"
start_pingd pingd-v1 "$state" "$BATON_VM_ADDRESS:$port"

for count in 1 8; do
  started=$SECONDS
  [[ $count -eq 1 ]] || pings=$pings_of_eight
  start_endless_clients "$BATON_VM_ADDRESS" "$count"
  wait_for "$count connections" is_connected "$count"
  disturb "$upgrades" "$kills"
  ping_on "$pings"
  # Whose clients end in the middle of a ping, their end is none of the device's faults.
  pause_clients
  statistics | check_counters || die "the device lost something, or was not ready"
  end_clients "$pings" || die "of $count clients, not all had their pings"
  say "$count clients: $((SECONDS - started)) s"
done

# One that ends by itself.
start_clients "$BATON_VM_ADDRESS" 1 5
check_clients 5 || die "the client that ends had not its pings"

# rdma_client: four, one after the other, the owner killed before every second.
other=/run/other
start_batond "$other"
start_pingd pingd-v1 "$other" "$BATON_VM_ADDRESS:7471" --protocol rdma_client
for ((i = 0; i < 4; ++i)); do
  if ((i % 2)); then
    former=$pingd
    start_pingd pingd-v2 "$other" "$BATON_VM_ADDRESS:7471" --protocol rdma_client
    kill -KILL "$former"
  fi
  rdma_client -s "$BATON_VM_ADDRESS" -p 7471 >"$work/rdma_client" 2>&1 || true
  grep -qx 'rdma_client: end 0' "$work/rdma_client" || die "rdma_client: $(cat "$work/rdma_client")"
done
say "4 rdma_clients"

# A pingd that leaves one WRITE out is found.
bad=/run/bad port=7175
start_batond "$bad"
start_pingd "$faulty" "$bad" "$BATON_VM_ADDRESS:$port" --fault lose-write --fault-at 6
start_clients "$BATON_VM_ADDRESS" 1 5
! check_clients 5 || die "a lost WRITE was not found"
grep -q 'data mismatch' "$work/client.0.err" || die "it was not the WRITE that was found"
