#!/usr/bin/env bash
# A service on rxe0 under load: its link goes down and comes up, the device is deleted and made
# again. Each is in the event log; the removal finishes; the service is there again with the device.
set -euo pipefail
state=/tmp/state address=$BATON_VM_ADDRESS
interface=$(rdma link show rxe0/1 | sed -n 's/.*netdev \([^ ]*\).*/\1/p')

die() {
  echo "device_loss: $*" >&2
  tail -n 30 /tmp/*.log >&2
  exit 1
}
# await WHAT COMMAND...: until it succeeds, for two minutes.
await() {
  local what=$1 deadline=$((SECONDS + 120))
  shift
  until "$@" >/dev/null 2>&1; do
    [[ $SECONDS -lt $deadline ]] || die "waited in vain for $what"
    sleep 0.2
  done
  echo "$what: after $SECONDS s"
}
operator() { baton --state-dir "$state" "$@"; }
logged() { grep -q "$1" /tmp/events.log; }
connected() { operator service describe kv | grep -q "Connections *$1 of"; }
# The worker and two peers: one that is busy, one that has nothing to say.
serve() {
  ledger-v1 --socket "$state/kv.sock" --service kv --listen "$address:7000" \
    --name "$1" >"/tmp/$1.log" 2>&1 &
  await "worker $1" operator_sees_ready
  baton-peer --device rdma --connect "$address:7000" --duration 600 --reply-timeout-ms 600000 \
    >"/tmp/peer-$1.log" 2>&1 &
  peer=$!
  await "a connection of worker $1" connected 1
}
operator_sees_ready() { operator worker list | grep -q ready; }

batond --dev --state-dir "$state" --device rdma --service kv >/tmp/batond.out 2>/tmp/batond.log &
await "batond" grep -q ready /tmp/batond.out
serve first
# It ends with the keeper's control, or with this script.
operator events --follow >/tmp/events.log 2>/tmp/follow.log &

operator service describe kv | grep -F "rxe0, RoCE on $interface, port 1 active, MTU 4096" ||
  die "the port is not shown"
ip link set "$interface" down
await "port_down" logged port_down
operator service list | grep -F "port down" || die "the port is not shown as down"
await "the end of the connection that sent" connected 0
ip link set "$interface" up
await "port_up" logged port_up
kill "$peer"
baton-peer --device rdma --connect "$address:7000" --duration 2 >/tmp/again.log 2>&1 ||
  die "no connection after the link came up"

baton-peer --device rdma --connect "$address:7000" --duration 600 --reply-timeout-ms 600000 \
  >/tmp/peer-loaded.log 2>&1 &
peer=$!
await "a connection under load" connected 1
keeper=$(pgrep -x baton-keeper)
(rdma link delete rxe0 && touch /tmp/removed) &
await "device_lost" logged device_lost
# The peer has it open, too.
kill "$peer"
await "the removal" test -e /tmp/removed
logged 'ended: .*removed' || die "the connection's end is not in the log"
[[ ! -d /proc/$keeper ]] || die "the keeper goes on without its device"
await "why the service cannot be reached" sh -c "baton --state-dir $state service list | grep unreachable"
grep 'no rxe0\|no RDMA device' /tmp/batond.log || die "the keeper does not say what it misses"

rdma link add rxe0 type rxe netdev "$interface"
await "the keeper" sh -c "baton --state-dir $state service list | grep -v unreachable | grep kv"
serve second
kill "$peer"
baton-peer --device rdma --connect "$address:7000" --duration 2 >/tmp/last.log 2>&1 ||
  die "no service after the device came back"
cat /tmp/events.log
