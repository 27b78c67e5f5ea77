#!/usr/bin/env bash
# native_kills.sh TEST ARGUMENTS: the shards of a native service go from worker to worker under checked load, and
# nothing is lost, repeated, reordered or disconnected. Each test is a function, followed by what it alone calls. A test
# with a SEED is random, and says which one it has taken.
set -euo pipefail
# shellcheck source=tests/vm/ledger_common.sh
source "$(dirname "$0")/ledger_common.sh"
# shellcheck source=tests/vm/native_common.sh
source "$(dirname "$0")/native_common.sh"

# kills KILLS SECONDS WORKERS [SEED]: the owner of a shard is killed at random moments, so often or for so long. The
# last line says how many kills there were. Of more workers than two, more stand by.
test_kills() {
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
}

# shared_receives KILLS SECONDS [SEED]: as kills, where the connections of a shard share their receives. Meanwhile other
# peers come and go, more than there are connections: each end waits until its queue pair has given back what it took,
# while the shard's owner is busy, asleep or killed.
test_shared_receives() {
  kills=$1 limit=$2 seed=${3:-$RANDOM}
  RANDOM=$seed
  say "seed $seed"
  max_connections=8 guests=0
  # Guests may come sooner than queue pairs may be used again.
  # shellcheck disable=SC2034  # of start_native
  native_fields='queue_pairs_per_shard: 32'

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
  [[ $device == soft ]] || echo "rate 200" 1<>"$work/checked.in"
  for ((j = 0; 2 * j <= max_connections; ++j)); do
    start_peer "guest$((guests += 1))" "$device" "$address" --connections 2 "${some_load[@]}"
    check_peer "guest$guests"
  done
  wait_for "the ends of connections" freed
  check_peer checked
  say "$(tail -n 1 "$work/checked.out" | cut -d, -f 5-15)"
  blackouts
  echo "$i kills with seed $seed, $guests guests: 0 lost, 0 duplicated, 0 reordered"
}

# freed: the slots of all connections but those of the peer that stays.
# shellcheck disable=SC2317  # wait_for calls it
freed() {
  [[ $(operator connection list kv -o json | grep -c '"generation"') -eq 4 ]]
}

# alternations COUNT [SEED]: the service is upgraded and its owner killed, in turn, so often, between two versions of
# its object. Whoever goes on runs the version that was upgraded to.
test_alternations() {
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
}

# handoffs HANDOFFS: shards move between the workers as planned, and to a new program, one shard first. Nobody dies who
# was not asked to end. Then the service is drained.
test_handoffs() {
  start_native kv "$BATON_BIN/ledger-v1.so"
  wait_for "two workers" are_ready 2
  start_peer checked "$device" "$address" --connections 4
  wait_for "both shards to be served" are_served 2

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
  operator upgrade kv --exec "$BATON_BIN/ledger-v2.so" --canary 50% --canary-window 0.5 --watch-window 1 \
    >"$work/upgrade" 2>&1 ||
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
  expect "a drained service" 'reject' late
  operator drain kv --end >"$work/drain" 2>&1 || die "the end of it: $(cat "$work/drain")"
  start_peer again "$device" "$address" --connections 2
  check_peer again
  operator shard history kv -o wide >"$work/history"
  [[ $(grep -c ' handoff ' "$work/history") -ge $(($1 + 2)) ]] || die "the history: $(cat "$work/history")"

  say "$(tail -n 1 "$work/checked.out" | cut -d, -f 5-15)"
  blackouts
  say "$1 handoffs"
}

# owner_is SHARD WORKER
owner_is() { follow && [[ ${owner_of[$1]} == "$2" ]]; }
# shellcheck disable=SC2317  # expect calls it
late() { baton-peer --device "$device" --connect "$address:$port" --duration 1; }

# poison AMOUNT: every worker dies of one peer's request for AMOUNT. After three deaths that connection alone is failed,
# and it is said why; four checked ones lose nothing, nor see an end.
test_poison() {
  # shellcheck disable=SC2034  # of start_native
  worker_flags=(--crash-on-amount "$1")

  # One shard: the connections are the deaths' witnesses.
  start_native kv "$BATON_BIN/ledger-v1-test-hooks.so" "shards: 1"
  wait_for "two workers" are_ready 2
  start_peer checked "$device" "$address" --connections 4 --rate 200
  wait_for "the shard to be served" are_served 1
  follow
  before=$ends

  BATON_TEST_DEVICE=$device BATON_TEST_HOST=$address timeout "$patience" poisoner "$port" ||
    die "the poisoned connection did not end as it should: $(tail -n 5 "$state.log")"
  say "the poisoned connection has ended"
  soon three_have_ended
  soon log_has 'connection_poisoned: .* is failed: 3 workers \('
  log_has 'connection_poisoned: .*died on its receive' || die "it is not said on what: $(events "$state")"
  expect "the shard" 'Poisoned: +1' operator shard describe kv 0
  wait_for "as many workers as before" are_ready 2
  check_peer checked
  follow
  [[ $((ends - before)) -eq 3 ]] || die "$((ends - before)) workers have died, and not 3"
  [[ $(grep -c connection_poisoned "$state.log") -eq 1 ]] || die "more than one connection was failed"
  say "$(tail -n 1 "$work/checked.out" | cut -d, -f 5-15)"
  blackouts
  say "one connection was failed after 3 deaths"
}

three_have_ended() { follow && [[ $((ends - before)) -ge 3 ]]; }

case ${1:-} in
  kills) test_kills "${@:2}" ;;
  shared_receives) test_shared_receives "${@:2}" ;;
  alternations) test_alternations "${@:2}" ;;
  handoffs) test_handoffs "${@:2}" ;;
  poison) test_poison "${@:2}" ;;
  *) die "no test \"${1:-}\"" ;;
esac
