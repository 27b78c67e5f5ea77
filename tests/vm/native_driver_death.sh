#!/usr/bin/env bash
# What becomes of a native service, under checked load, when its keeper is killed: while nobody is
# there in its place, with another that has adopted what there was, when that one is killed, too, and
# when the last connection has ended. Then what ends a worker: batond's end, and, where batond holds
# nothing, the keeper's.
set -euo pipefail
# shellcheck source=tests/vm/ledger_common.sh
source "$(dirname "$0")/ledger_common.sh"
# shellcheck source=tests/vm/native_common.sh
source "$(dirname "$0")/native_common.sh"

# driver_pid: of the service's last one.
driver_pid() { sed -n 's/.*driver of service kv: started, pid \([0-9]*\)$/\1/p' "$state.log" | tail -n 1; }
# settle PEER: it is served: each connection was answered a request that was made after this.
settle() {
  local before
  before=$(grep -c '"settled"' "$work/$1.out" || true)
  echo settle 1<>"$work/$1.in"
  wait_for "peer $1 to be answered" has_settled "$1" "$before"
}
# shellcheck disable=SC2317  # wait_for calls it
has_settled() {
  peer_has_said "$1" '"connected"'
  [[ $(grep -c '"settled"' "$work/$1.out" || true) -gt $2 ]]
}
# are_gone PID...
are_gone() {
  local pid
  for pid in "$@"; do ! kill -0 "$pid" 2>/dev/null || return 1; done
}

# is_refused WHY: a new connection.
is_refused() {
  ! timeout 60 baton-peer --device "$device" --connect "$address:$port" --json \
    --duration 1 >"$work/refused" 2>&1 || die "a new connection was taken: $(cat "$work/refused")"
  grep -q "$1" "$work/refused" || die "a new connection was refused otherwise: $(cat "$work/refused")"
}

# As nobody in particular, who reads the object all the same.
object=$(mktemp -d)/ledger-v1.so
chmod 755 "${object%/*}"
cp "$BATON_BIN/ledger-v1.so" "$object"
native_fields='workers: 4 uid: 4321 gid: 1234'
start_native kv "$object" "hang_timeout_ms: 10000"
wait_for "four workers" are_ready 4
start_peer checked "$device" "$address" --connections 4
start_peer leaver "$device" "$address"
start_peer early "$device" "$address"
wait_for "both shards to be served" are_served 2
settle checked

# What ends a drain ends no keeper that has nothing to drain.
keeper=$(driver_pid)
kill -USR1 "$keeper"
expect "the keeper" 'Owner: +worker' operator shard describe kv 0
[[ $(driver_pid) == "$keeper" ]] || die "keeper $keeper has ended"

# Nobody is there in its place: batond is stopped. The owner of shard 0 dies, and its heir, in whose
# memory all is, goes on. A peer that disconnects is answered by who comes.
follow
first=${pid_of[${owner_of[0]}]}
kill -STOP "$batond"
kill -KILL "$keeper"
settle checked
kill -KILL "$first"
settle checked
say "with no keeper the owners went on, and an heir in the place of one"

settle early
echo stop 1<>"$work/early.in"
mark
kill -CONT "$batond"
wait_for "an adoption" has_logged 'adopted: service kv: .* 6 connections go on'
wait "${peers[early]}" || die "peer early was not served as it should be: $(tail -n 1 "$work/early.out")"
rm "$work/early.in"
wait_for "its connection to have ended" has_logged 'adopted_connection_ended: .* 5 are left'
settle checked
expect "the list" 'adopted, draining: 5 connections' operator service list
expect "an upgrade" 'adopted, draining' operator upgrade kv --exec "$object"
is_refused 'nobody listens'

# The peer's disconnect comes to the owner.
mark
check_peer leaver
wait_for "a connection to have ended" has_logged 'adopted_connection_ended: .* 4 are left'

# Another owner dies: whom the adopter has named goes on.
follow
second=${pid_of[${owner_of[0]}]}
[[ $second != "$first" ]] || die "worker $first is dead, and owns shard 0"
kill -KILL "$second"
settle checked
say "and the next heir"

# It hangs, and is killed.
follow
third=${pid_of[${owner_of[0]}]}
mark
kill -STOP "$third"
wait_for "worker $third to be killed" has_logged "worker_killed: .*pid $third\\).* no sign of life"
settle checked
say "and the last"

# The adopter dies.
mark
kill -KILL "$(driver_pid)"
wait_for "another adoption" has_logged 'adopted: service kv: .* 4 connections go on'
settle checked
say "and another adopter came"

# The last connection ends.
mark
follow
last=${pid_of[${owner_of[0]}]}
check_peer checked
wait_for "the service to begin anew" has_logged 'drained: service kv: .* no connection is left'
ready=() owner_of=()
wait_for "four new workers" are_ready 4
are_gone "$last" || die "worker $last of the former driver is alive"
start_peer anew "$device" "$address" --connections 2
settle anew
say "drained, the service is another's"

# Told to, an adopter does not wait for the last connection. That the service is drained outlives
# both keepers.
operator drain kv --no-wait >/dev/null
mark
follow
former=("${pid_of[@]}")
kill -KILL "$(driver_pid)"
wait_for "an adoption" has_logged 'adopted: service kv: .* 2 connections go on'
settle anew
kill -USR1 "$(driver_pid)"
wait_for "the peer to be disconnected" has_ended anew
ready=()
wait_for "four new workers" are_ready 4
are_gone "${former[@]}" || die "workers of the former driver are alive"
say "told to end them, it did"
expect "the service" 'refused \(0 since' operator service describe kv
is_refused 'the peer rejected the connection'
has_logged 'connection_refused: the service is drained' || die "the refusal was not told of"
operator drain kv --end >/dev/null
start_peer again "$device" "$address"
settle again
say "the next keeper went on with the drain, until that was ended"

# Nobody is left behind when batond and the keeper are killed, not even who cannot run.
follow
pids=()
for worker in "${!ready[@]}"; do pids+=("${pid_of[$worker]}"); done
kill -STOP "${pids[@]}"
kill -STOP "$batond" # it would start another
kill -KILL "$(driver_pid)"
kill -KILL "$batond"
soon are_gone "${pids[@]}"
say "with batond and keeper all workers were gone"

# The control: batond holds nothing.
mkdir "$work/libexec"
ln -s "$BATON_BIN"/* "$work/libexec"
rm "$work/libexec/baton-driver"
printf '#!/bin/sh\nunset BATON_STORE_FD\nexec %s/baton-driver\n' "$BATON_BIN" >"$work/libexec/baton-driver"
chmod +x "$work/libexec/baton-driver"
batond_flags=(--libexec "$work/libexec")
state=/run/control
ready=() owner_of=() pid_of=()
start_native kv "$object"
wait_for "four workers" are_ready 4
start_peer control "$device" "$address"
settle control
follow
kill -KILL "$(driver_pid)"
wait_for "the peer to be disconnected" has_ended control
soon are_gone "${pid_of[@]}"
say "where batond holds nothing, all ends with the keeper"
kill "$batond"
wait "$batond" || die "batond did not end well: $(tail -n 3 "$state.log")"
