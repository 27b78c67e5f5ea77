#!/usr/bin/env bash
# pingd_wire.sh UPGRADES KILLS: pingd on rxe0, upgraded and killed, while the rpings of another machine
# (pingd_wire_peer.sh) ping it over the wire: one, then eight.
set -euo pipefail
# shellcheck source=tests/vm/pingd_common.sh
source "$(dirname "$0")/pingd_common.sh"
upgrades=$1 kills=$2

test_checkers
prefer_the_device
count_timers
start_batond "$state"
start_pingd pingd-v1 "$state" "$BATON_VM_ADDRESS:$port"
start_pingd pingd-v1 "$state" "$BATON_VM_ADDRESS:$port"
# The peer connects when it may begin, and tells at the end what it has found.
busybox nc -l -p "$report_port" >"$work/report" &
report=$!

for count in 1 8; do
  wait_for "$count connections" is_connected "$count"
  disturb "$upgrades" "$kills"
  [[ $(connected) -eq $count ]] || die "not all of $count clients pinged until the last kill"
done
wait "$report" || die "the peer has told nothing"
statistics >"$work/statistics"
sed -n 's/^statistics: //p' "$work/report" >>"$work/statistics"
[[ $(grep -c '^link rxe0/1 ' "$work/statistics") -eq 2 ]] || die "the peer has no statistics"
check_counters <"$work/statistics" || die "the devices lost something, or were not ready"
grep -v '^statistics: ' "$work/report"
[[ $(tail -n 1 "$work/report") == "all found" ]] || die "the peer has not found all"
