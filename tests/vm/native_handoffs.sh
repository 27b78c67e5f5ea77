#!/usr/bin/env bash
# native_handoffs.sh HANDOFFS: the shards of a native service move between its workers as planned, under
# checked load, and to a new program: nothing is lost, repeated, reordered or disconnected, and nobody
# dies who was not asked to end.
set -euo pipefail
# shellcheck source=tests/vm/ledger_common.sh
source "$(dirname "$0")/ledger_common.sh"
# shellcheck source=tests/vm/native_common.sh
source "$(dirname "$0")/native_common.sh"

start_native kv "$BATON_BIN/ledger-v1.so"
wait_for "two workers" are_ready 2
start_peer checked rxe0 "$BATON_VM_ADDRESS" --connections 4
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
operator upgrade kv --exec "$BATON_BIN/ledger-v2.so" --watch-window 1 >"$work/upgrade" 2>&1 ||
  die "the upgrade: $(cat "$work/upgrade")"
follow
[[ ${owner_of[0]} == "${owner_of[1]}" && ${owner_of[0]} != "$to" ]] ||
  die "after the upgrade worker ${owner_of[0]} owns one shard and worker ${owner_of[1]} the other"

check_peer checked
follow
[[ $ends -eq 2 ]] || die "$ends workers have ended, and not the two old ones"
! log_has 'ownership_ended: .* ended: crash' || die "an ownership ended by a crash"
say "$(tail -n 1 "$work/checked.out" | cut -d, -f 5-15)"
blackouts
say "$1 handoffs"
