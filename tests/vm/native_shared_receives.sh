#!/usr/bin/env bash
# native_shared_receives.sh KILLS SECONDS [SEED]: as native_kills.sh, where the connections of a shard
# share their receives. Meanwhile other peers come and go, more than there are connections: each end
# waits until its queue pair has given back what it took, while the shard's owner is busy, asleep or
# killed.
set -euo pipefail
# shellcheck source=tests/vm/ledger_common.sh
source "$(dirname "$0")/ledger_common.sh"
# shellcheck source=tests/vm/native_common.sh
source "$(dirname "$0")/native_common.sh"
kills=$1 limit=$2 seed=${3:-$RANDOM}
RANDOM=$seed
say "seed $seed"
max_connections=8 guests=0
# Guests may come sooner than queue pairs may be used again.
# shellcheck disable=SC2034  # of start_native
native_fields='queue_pairs_per_shard: 32'

# freed: the slots of all connections but those of the peer that stays.
# shellcheck disable=SC2317  # wait_for calls it
freed() {
  [[ $(operator connection list kv -o json | grep -c '"generation"') -eq 4 ]]
}

start_native kv "$BATON_BIN/ledger-v1.so" \
  "shared_receive_queue_depth: 64 max_connections: $max_connections"
wait_for "two workers" are_ready 2
start_peer checked "$device" "$address" --connections 4
wait_for "both shards to be served" are_served 2
for ((i = 0; i < kills && SECONDS < limit; ++i)); do
  [[ -n ${guest:-} ]] || start_peer "guest$((guests += 1))" "$device" "$address" --connections 2
  guest=guest$guests
  pause "0.$((RANDOM % 4))$((RANDOM % 10))"
  kill_owner $((RANDOM % 2)) KILL
  if ((RANDOM % 2)); then
    check_peer "$guest"
    guest=''
    # Half of the ends are left to the next owner.
    ((RANDOM % 2)) || wait_for "the ends of connections" freed
  fi
done
[[ -z ${guest:-} ]] || check_peer "$guest"
# What none of these deaths has anything to do with: more of them than slots.
for ((j = 0; j < max_connections; ++j)); do
  start_peer "guest$((guests += 1))" "$device" "$address" --connections 2
  check_peer "guest$guests"
done
wait_for "the ends of connections" freed
check_peer checked
say "$(tail -n 1 "$work/checked.out" | cut -d, -f 5-15)"
blackouts
echo "$i kills with seed $seed, $guests guests: 0 lost, 0 duplicated, 0 reordered"
