#!/usr/bin/env bash
# native_alternations.sh COUNT [SEED]: a native service is upgraded and its owner killed, in turn, so
# often, between two versions of its object and under checked load: nothing is lost, repeated,
# reordered or disconnected, and whoever goes on runs the version that was upgraded to.
set -euo pipefail
# shellcheck source=tests/vm/ledger_common.sh
source "$(dirname "$0")/ledger_common.sh"
# shellcheck source=tests/vm/native_common.sh
source "$(dirname "$0")/native_common.sh"
count=$1 seed=${2:-$RANDOM}
RANDOM=$seed
say "seed $seed"

start_native kv "$BATON_BIN/ledger-v1.so"
wait_for "two workers" are_ready 2
start_peer checked "$device" "$address" --connections 4
wait_for "both shards to be served" are_served 2
version=1
for ((i = 1; i <= count; ++i)); do
  version=$((3 - version)) object=ledger-v$version.so
  ! all_run "$object" || die "$object runs before it was upgraded to"
  upgrade_to kv "$object"
  pause "0.$((RANDOM % 10))"
  kill_owner $((RANDOM % 2)) KILL
  all_run "$object" || die "after the kill of an owner, not all run $object"
  [[ $((i % 10)) -ne 0 ]] || say "$i upgrades and kills"
done
check_peer checked
say "$(tail -n 1 "$work/checked.out" | cut -d, -f 5-15)"
# What was meant to happen, and nothing else.
[[ $(grep -c 'upgrade_completed:' "$state.log") -eq $count ]] || die "not $count upgrades"
deaths=$(grep -c 'worker_killed:' "$state.log")
[[ $deaths -eq $count ]] || die "$deaths workers died, and $count were killed"
blackouts
echo "$count upgrades and $count kills with seed $seed: 0 lost, 0 duplicated, 0 reordered, 0 disconnects"
