#!/usr/bin/env bash
# native_kills.sh KILLS SECONDS WORKERS [SEED]: the owner of a shard of a native service is killed at
# random moments under checked load, so often or for so long: nothing is lost, repeated, reordered or
# disconnected. The last line says how many kills there were. Of more workers than two, more stand by.
set -euo pipefail
# shellcheck source=tests/vm/ledger_common.sh
source "$(dirname "$0")/ledger_common.sh"
# shellcheck source=tests/vm/native_common.sh
source "$(dirname "$0")/native_common.sh"
kills=$1 limit=$2 seed=${4:-$RANDOM}
# shellcheck disable=SC2034  # of start_native
native_fields="workers: $3"
RANDOM=$seed
say "seed $seed"
random_addresses

start_native kv "$BATON_BIN/ledger-v1.so"
wait_for "two workers" are_ready 2
start_peer checked "$device" "$address" --connections 4
wait_for "both shards to be served" are_served 2
began=$SECONDS longest=0
for ((i = 0; i < kills && SECONDS < limit; ++i)); do
  pause "0.$((RANDOM % 4))$((RANDOM % 10))"
  killed_at=${EPOCHREALTIME//[^0-9]/}
  kill_owner $((RANDOM % 2)) KILL
  waited=$(((${EPOCHREALTIME//[^0-9]/} - killed_at) / 1000))
  longest=$((waited > longest ? waited : longest))
done
say "$i kills in $((SECONDS - began)) s, the longest wait for two that are ready $longest ms"
check_peer checked
say "$(tail -n 1 "$work/checked.out" | cut -d, -f 5-15)"
blackouts
echo "$i kills with seed $seed: 0 lost, 0 duplicated, 0 reordered"
