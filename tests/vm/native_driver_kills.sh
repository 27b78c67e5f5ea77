#!/usr/bin/env bash
# native_driver_kills.sh KILLS: keepers of a native service are killed one after the other, at any
# moment: while one takes over, and while peers connect and go. The connections that there were go on
# under checked load, and the kernel has nothing to complain of.
set -euo pipefail
# shellcheck source=tests/vm/ledger_common.sh
source "$(dirname "$0")/ledger_common.sh"
# shellcheck source=tests/vm/native_common.sh
source "$(dirname "$0")/native_common.sh"
kills=$1

driver_pid() { sed -n 's/.*driver of service kv: started, pid \([0-9]*\)$/\1/p' "$state.log" | tail -n 1; }
# shellcheck disable=SC2317  # soon calls it
another_keeper() { [[ $(driver_pid) != "$1" ]]; }
# Peers that come and go for as long as it is not stopped: some are refused, some cut off.
come_and_go() {
  while [[ ! -e $work/stop ]]; do
    timeout 20 baton-peer --device "$device" --connect "$address:$port" --json \
      --duration 0.2 >>"$work/comers" 2>&1 || true
  done
}

start_native kv "$BATON_BIN/ledger-v1.so"
wait_for "two workers" are_ready 2
start_peer checked "$device" "$address" --connections 4
wait_for "both shards to be served" are_served 2
come_and_go &
wait_for "somebody who comes and goes" grep -q '"final"' "$work/comers"
killed=''
for ((i = 0; i < kills; ++i)); do
  soon another_keeper "$killed"
  # Every other one gets to take over, also in a slow machine: when four in a row do not, the next
  # gives the connections up.
  [[ $((i % 2)) -eq 0 ]] || wait_for "an adoption" has_logged 'adopted: service kv: '
  mark
  killed=$(driver_pid)
  pause "$((RANDOM % 2)).$((RANDOM % 10))"
  kill -KILL "$killed"
done
mark
wait_for "an adoption" has_logged 'adopted: service kv: '
touch "$work/stop"
say "$kills keepers were killed, $(grep -c 'adopted: service kv' "$state.log") had adopted"
! log_has 'adoption_failed|drained: ' || die "connections were given up: $(grep -E 'adoption_failed|drained' "$state.log")"
check_peer checked
wait_for "the service to begin anew" has_logged 'drained: service kv: .* no connection is left'
say "$(grep -c . "$work/comers" || true) lines of those who came and went"
dmesg >"$work/kernel"
! grep -E 'BUG|Oops|WARNING|refcount|use-after-free' "$work/kernel" || die "the kernel complains"
kill "$batond"
wait "$batond" || die "batond did not end well: $(tail -n 3 "$state.log")"
