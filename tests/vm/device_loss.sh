#!/usr/bin/env bash
# Two services, each on an RDMA device of its own. What the device of one cannot do is refused; its
# link goes down and up; the other gets an address while its service has no keeper; the one is deleted under load, and
# comes back. Each time an operator can read what has happened, its service is there again, and the other's peer has
# noticed nothing.
set -euo pipefail
# shellcheck source=tests/vm/ledger_common.sh
source "$(dirname "$0")/ledger_common.sh"

address=$BATON_VM_ADDRESS
interface=$(rdma link show rxe0/1 | sed -n 's/.*netdev \([^ ]*\).*/\1/p')
other_address=10.0.1.1
ip link add other type dummy
ip addr add "$other_address/24" dev other
ip link set other mtu 4200 up
rdma link add rxe1 type rxe netdev other

start_batond kv rxe0 other rxe1
start_worker kv "$address"
start_worker other "$other_address"
start_peer bystander rdma:rxe1 "$other_address" --rate 100

# ---- Limits of the device, and of what may be registered.
expect "a service too large" \
  'entries in each completion queue.*of which it has 32767: lower max_connections' \
  batond --start-timeout 300 --dev --device rdma:rxe0 --state-dir "$work/large" --max-connections 512
# shellcheck disable=SC2016  # of the shell inside
expect "a service without memory to lock" 'RLIMIT_MEMLOCK is 1 MiB.*LimitMEMLOCK=infinity' \
  setpriv --bounding-set=-ipc_lock,-sys_resource --inh-caps=-ipc_lock,-sys_resource \
  bash -c 'ulimit -l 1024; exec batond --start-timeout 300 --dev --device rdma:rxe0 --state-dir "$0"' "$work/locked"
say "what is too much is refused"

# ---- Link down and up, with replies to send: the owner stands still until the requests have come.
start_peer busy rdma:rxe0 "$address" --window 8
worker=$(pgrep -f '^ledger-v1 .*--service kv')
kill -STOP "$worker"
wait_for "a window of requests" unanswered kv 8
mark
ip link set "$interface" down
wait_for "the port's end" has_logged 'port_down: port 1 of device rxe0 is down'
expect "its service" 'kv .*rxe0 \(port down\)' operator service list
kill -CONT "$worker"
wait_for "the end of the connection" has_logged 'connection 0 with .* ended: local QP operation error'
wait_for "its worker to hear it" grep -q 'connection 0 of .* ended: local QP' "$work/kv.log"
ip link set "$interface" up
wait_for "the port" has_logged 'port_up: port 1 of device rxe0 is up'
has_ended busy || die "a peer has not noticed that it has no connection any more"
expect "its service" 'kv +ok +rxe0 ' operator service list
start_peer after-link rdma:rxe0 "$address" --rate 200
check_peer after-link
say "the link was down and is up"

# ---- An asynchronous event of a device when the keeper is dead: the next one reports it, and nobody else notices.
mark
keeper=$(operator service list -o json | jq -r '.services[] | select(.name == "other") | .keeper_pid')
kill -KILL "$keeper"
while kill -0 "$keeper" 2>/dev/null; do pause 0.01; done  # its driver has noticed
ip addr add 10.0.1.2/24 dev other
wait_for "the next keeper" has_logged 'keeper_followed: '
wait_for "the event" has_logged 'device_addresses_changed: addresses of .*rxe1 have changed'
start_peer after-event rdma:rxe1 "$other_address" --rate 100
check_peer after-event
say "the device had an event without a keeper"

# ---- The device is deleted, and made again.

# lose_device: the deletion waits until nobody has the device open.
lose_device() {
  local begun=$SECONDS
  mark
  rdma link delete rxe0
  say "deleted within $((SECONDS - begun)) s"
  has_logged 'device_lost: device rxe0 is lost' || die "the keeper has not said so"
  has_logged 'service kv: ends: device rxe0 is lost' || die "the keeper does not say why it ends"
  ! has_logged 'driver of service other: .*ended' || die "the other service's keeper has ended"
  wait_for "an attempt without the device" has_logged 'service kv: device: no rxe0 here, there are rxe1'
  expect "why there is no service" 'kv: service "kv" is down: .*no rxe0 here.*tries to start it' \
    operator service list
  expect "the other service" 'other +ok +rxe1 ' operator service list
  expect "the events" 'kv .*device_lost' operator events kv
}
# return_device: its service is there again.
return_device() {
  mark
  : >"$work/kv.log"
  rdma link add rxe0 type rxe netdev "$interface"
  wait_for "the keeper" has_logged 'driver of service kv: ready'
  wait_for "a worker of kv" grep -q 'ledger ready' "$work/kv.log"
  start_peer "after-$1" rdma:rxe0 "$address" --rate 200
  check_peer "after-$1"
  ! operator service list | grep 'is down' >/dev/null || die "the service is still said to be down"
}

: >"$work/kv.log"
start_peer loaded rdma:rxe0 "$address" --connections 4
lose_device
[[ $(grep -c 'connection .* ended: ' "$work/kv.log") -eq 4 ]] ||
  die "the worker has not heard of the ends of all connections"
# A peer at the same device is told of the removal, too, and may be quicker to disconnect.
! grep 'connection .* ended: ' "$work/kv.log" |
  grep -vE 'ended: (fatal error of the device|disconnected)' || die "a connection ended otherwise"
sed -n '/service kv is gone/q;p' "$work/kv.log" >"$work/before"
[[ $(grep -c 'connection .* ended: ' "$work/before") -eq 4 ]] || die "it heard of them too late"
has_ended loaded || die "a peer has not noticed that its device is gone"
return_device load

lose_device
return_device idleness
check_peer bystander
