#!/usr/bin/env bash
# native_pingd.sh PINGS PINGS_OF_EIGHT KILLS [SEED]: Debian's rping against a native pingd on rxe0, whose
# owner is killed at random moments: one client, then eight with their pings each; every ping comes
# back once.
set -euo pipefail
here=$(dirname "$0")
# shellcheck source=tests/vm/pingd_common.sh
source "$here/pingd_common.sh"
# shellcheck source=tests/vm/native_common.sh
source "$here/native_common.sh"
pings=$1 pings_of_eight=$2 kills=$3 seed=${4:-$RANDOM}
RANDOM=$seed
say "seed $seed"

# Less than the machine's time, so that what all have said is shown.
# shellcheck disable=SC2034  # of wait_for
patience=120
trap '[[ $? -eq 0 ]] || tail -n 60 "$state.log" >&2' EXIT

test_checkers
prefer_the_device
count_timers
start_native "$service" "$BATON_BIN/pingd-v1.so"
wait_for "two workers" are_ready 2

for count in 1 8; do
  started=$SECONDS
  [[ $count -eq 1 ]] || pings=$pings_of_eight
  start_clients "$BATON_VM_ADDRESS" "$count" "$pings"
  wait_for "$count connections" is_connected "$count"
  for ((i = 0; i < kills; ++i)); do
    pause "0.$((RANDOM % 10))"
    follow
    shards=("${!owner_of[@]}")
    kill_owner "${shards[RANDOM % ${#shards[@]}]}" KILL
  done
  still=$(connected)
  check_clients "$pings" || die "of $count clients, not all had their pings"
  statistics | check_counters || die "the device lost something, or was not ready"
  [[ $still -eq $count ]] || die "only $still of $count clients pinged until the last kill"
  say "$count clients, $kills kills: $((SECONDS - started)) s"
done
blackouts
