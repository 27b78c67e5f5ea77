#!/usr/bin/env bash
# What becomes of a native service, under checked load, when its owner hangs, when all of its workers
# die at once, and of one whose object is missing or is none.
set -euo pipefail
# shellcheck source=tests/vm/ledger_common.sh
source "$(dirname "$0")/ledger_common.sh"
# shellcheck source=tests/vm/native_common.sh
source "$(dirname "$0")/native_common.sh"

start_native kv "$BATON_BIN/ledger-v1.so" "hang_timeout_ms: 10000"
wait_for "two workers" are_ready 2
start_peer checked "$device" "$address" --connections 4
wait_for "both shards to be served" are_served 2

# It is killed, and who stood by goes on.
mark
kill_owner 0 STOP
has_logged "worker_killed: .*pid $killed\).* no sign of life" || die "worker $killed was not killed"
has_logged 'ownership_ended: .* ended: hang' || die "it is not said that the owner hung"
! kill -0 "$killed" 2>/dev/null || die "process $killed, which hung, is alive"
say "an owner that hung was replaced"

# Both at once, twice. Whoever comes has never seen the connections.
for _ in 1 2; do
  follow
  lost=("${!ready[@]}")
  pids=()
  for worker in "${lost[@]}"; do pids+=("${pid_of[$worker]}"); done
  kill -KILL "${pids[@]}"
  for worker in "${lost[@]}"; do soon went_on "$worker" 2; done
done
say "workers that were new went on"
check_peer checked
say "$(tail -n 1 "$work/checked.out" | cut -d, -f 5-15)"
blackouts
kill "$batond"
wait "$batond" || die "batond did not end well: $(tail -n 3 "$state.log")"

# Objects that are none: the service says why.
echo text >"$work/text.so"
# try_object OBJECT
try_object() {
  object=$1 forks=0
  start_native bad "$object"
  wait_for "why $object cannot be run" log_has "native_worker_failed: .*$object"
  expect "the events" "native_worker_failed .*$object" operator events bad
}
end_service() {
  kill "$batond"
  wait "$batond" || die "batond did not end well: $(tail -n 3 "$state.log")"
}
for path in "$work/text.so" "$(ldconfig -p | awk '$1 == "libm.so.6" { print $NF; exit }')"; do
  try_object "$path"
  end_service
done

# Its keeper tries again less and less often.
try_object "$work/missing.so"
pause 10
follow
say "forked $forks times"
# Without a pause it is hundreds of times.
[[ $forks -le 40 ]] || die "$forks workers were forked for an object that is missing"
operator service list
end_service
