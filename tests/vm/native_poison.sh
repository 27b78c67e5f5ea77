#!/usr/bin/env bash
# native_poison.sh AMOUNT: every worker of a native service dies of one peer's request for AMOUNT. After
# three deaths that connection alone is failed, and it is said why; four checked ones lose nothing, nor
# see an end.
set -euo pipefail
# shellcheck source=tests/vm/ledger_common.sh
source "$(dirname "$0")/ledger_common.sh"
# shellcheck source=tests/vm/native_common.sh
source "$(dirname "$0")/native_common.sh"
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
three_have_ended() { follow && [[ $((ends - before)) -ge 3 ]]; }
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
