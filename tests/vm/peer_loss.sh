#!/usr/bin/env bash
# The machine of four of a service's peers is gone from one moment to the next, with work outstanding both ways: their
# connections end when the retries are used up, and a peer of this machine notices nothing.
set -euo pipefail
# shellcheck source=tests/vm/ledger_common.sh
source "$(dirname "$0")/ledger_common.sh"

gone_port=7000 # pulls the other machine's plug

# The other machine runs this script, too. It has the four peers until its plug is pulled.
four_peers() {
  baton-peer --device rdma:rxe0 --connect 10.0.0.1:7471 --connections 4 --window 8 --duration 3600 \
    --reply-timeout-ms 3600000 &>/dev/null || true
}
if [[ $BATON_VM_ADDRESS == 10.0.0.2 ]]; then
  # Until the service is there.
  while :; do
    four_peers
    sleep 0.5
  done &
  busybox nc -l -p "$gone_port" </dev/null
  echo b >/proc/sysrq-trigger
  exit
fi

start_batond kv rxe0
start_worker kv "$BATON_VM_ADDRESS"
start_peer bystander rdma:rxe0 "$BATON_VM_ADDRESS" --rate 20
established() { [[ $(grep -c 'connection [0-9]* with 10\.0\.0\.2.* established' "$state.log") -eq 4 ]]; }
wait_for "the peers of the other machine" established

# The owner stands still until all their requests have come, and answers when nobody is there.
worker=$(pgrep -x ledger-v1)
kill -STOP "$worker"
wait_for "four windows of requests" unanswered kv 32
(exec 3<>"/dev/tcp/10.0.0.2/$gone_port") || die "the other machine cannot be told"
is_gone() { ! busybox ping -c 1 -W 1 10.0.0.2 >/dev/null; }
wait_for "its end" is_gone
begun=$SECONDS
kill -CONT "$worker"

ended() { [[ $(grep -cE "$1" "$2") -eq 4 ]]; }
why='transport retry counter exceeded'
wait_for "the connections' end" ended "connection: connection [0-9]* with 10\.0\.0\.2.* ended: $why" "$state.log"
say "ended within $((SECONDS - begun)) s"
wait_for "the worker to hear it" ended "connection [0-9]* of 10\.0\.0\.2.* ended: $why" "$work/kv.log"
expect "the events" "connection .* with 10\.0\.0\.2:.* ended: $why" operator events kv
expect "the service" 'kv +ok .* 1/16 ' operator service list
check_peer bystander
