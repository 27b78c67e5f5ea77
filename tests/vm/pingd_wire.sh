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
# The peer connects when it may begin.
coproc nc { exec busybox nc -l -p "$report_port"; }
# shellcheck disable=SC2154  # of coproc, which takes them back when it ends
exec {from_peer}<&"${nc[0]}" {to_peer}>&"${nc[1]}"

for count in 1 8; do
  wait_for "$count connections" is_connected "$count"
  disturb "$upgrades" "$kills"
  echo "disturbed" >&"$to_peer"
  until read -ru "$from_peer" line || die "the peer has gone"; [[ $line == "statistics: "* ]]; do
    echo "$line"
  done
  { statistics && echo "${line#statistics: }"; } >"$work/statistics"
  [[ $(grep -c '^link rxe0/1 ' "$work/statistics") -eq 2 ]] || die "the peer has no statistics"
  check_counters <"$work/statistics" || die "the devices lost something, or were not ready"
  echo "judged" >&"$to_peer"
done
line=''
while read -ru "$from_peer" line; do
  echo "$line"
  [[ $line != "all found" ]] || exit 0
done
die "the peer has not found all"
