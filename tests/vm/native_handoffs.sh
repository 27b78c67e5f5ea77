#!/usr/bin/env bash
# native_handoffs.sh HANDOFFS: the shards of a native service move between its workers as planned, under
# checked load, and to a new program, one shard first: nothing is lost, repeated, reordered or
# disconnected, and nobody dies who was not asked to end. Then the service is drained.
set -euo pipefail
# shellcheck source=tests/vm/ledger_common.sh
source "$(dirname "$0")/ledger_common.sh"
# shellcheck source=tests/vm/native_common.sh
source "$(dirname "$0")/native_common.sh"

start_native kv "$BATON_BIN/ledger-v1.so"
wait_for "two workers" are_ready 2
start_peer checked "$device" "$address" --connections 4
wait_for "both shards to be served" are_served 2

# owner_is SHARD WORKER
owner_is() { follow && [[ ${owner_of[$1]} == "$2" ]]; }
workers=("${!ready[@]}")
for ((i = 0; i < $1; ++i)); do
  shard=$((i % 2))
  to=${workers[0]}
  [[ ${owner_of[$shard]} != "$to" ]] || to=${workers[1]}
  operator handoff kv --shard "$shard" --to "$to" >"$work/handoff" 2>&1 ||
    die "handoff $i of shard $shard to worker $to: $(cat "$work/handoff")"
  soon owner_is "$shard" "$to"
done
# Both, to one worker.
to=${workers[1]}
operator handoff kv --to "$to" >"$work/handoff" 2>&1 || die "of both: $(cat "$work/handoff")"
soon owner_is 0 "$to"
soon owner_is 1 "$to"
# Nobody says how many new workers there are to be: as many as there were, of which one stands by.
operator upgrade kv --exec "$BATON_BIN/ledger-v2.so" --canary 50% --canary-window 0.5 --watch-window 1 >"$work/upgrade" 2>&1 ||
  die "the upgrade: $(cat "$work/upgrade")"
log_has 'upgrade_canary: upgrade 1: 1 shards moved' || die "no canary was moved"
follow
[[ ${owner_of[0]} == "${owner_of[1]}" && ${owner_of[0]} != "$to" ]] ||
  die "after the upgrade worker ${owner_of[0]} owns one shard and worker ${owner_of[1]} the other"

check_peer checked
follow
[[ $ends -eq 2 ]] || die "$ends workers have ended, and not the two old ones"
! log_has 'ownership_ended: .* ended: crash' || die "an ownership ended by a crash"

# What is left at the deadline is disconnected, and new ones are refused until that ends.
start_peer leaving "$device" "$address" --connections 3
operator drain kv --deadline 1 --disconnect >"$work/drain" 2>&1 || die "the drain: $(cat "$work/drain")"
log_has 'drain_disconnected: 3 connections' || die "nobody was disconnected: $(cat "$work/drain")"
wait_for "the peer's end" has_ended leaving
# shellcheck disable=SC2317  # expect calls it
late() { baton-peer --device "$device" --connect "$address:$port" --duration 1; }
expect "a drained service" 'reject' late
operator drain kv --end >"$work/drain" 2>&1 || die "the end of it: $(cat "$work/drain")"
start_peer again "$device" "$address" --connections 2
check_peer again
operator shard history kv -o wide >"$work/history"
[[ $(grep -c ' handoff ' "$work/history") -ge $(($1 + 2)) ]] || die "the history: $(cat "$work/history")"

say "$(tail -n 1 "$work/checked.out" | cut -d, -f 5-15)"
blackouts
say "$1 handoffs"
