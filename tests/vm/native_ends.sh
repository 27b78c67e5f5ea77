#!/usr/bin/env bash
# native_ends.sh TIMES: what ends with what on the soft device, under checked load. When a native service's keeper or its
# NIC is killed, connections, workers, keeper and NIC end, and the service begins anew; with batond nothing ends.
set -euo pipefail
# shellcheck source=tests/vm/ledger_common.sh
source "$(dirname "$0")/ledger_common.sh"
# shellcheck source=tests/vm/native_common.sh
source "$(dirname "$0")/native_common.sh"

# find_all: keeper, NIC and workers of the service; $all is all of them.
find_all() {
  local worker
  keeper=$(pgrep -P "$batond" -x baton-driver) || die "there is no keeper"
  nic=$(pgrep -P "$keeper" -x baton-nic) || die "keeper $keeper has no NIC"
  follow
  all=("$keeper" "$nic")
  for worker in "${!ready[@]}"; do all+=("${pid_of[$worker]}"); done
  [[ ${#all[@]} -eq 4 ]] || die "two processes and ${#ready[@]} workers, not 2"
  kill -0 "${all[@]}" || die "not all of ${all[*]} live"
}
# are_listening: both workers of this keeper have said where.
# shellcheck disable=SC2317  # wait_for calls it
are_listening() { are_ready 2 && [[ $(tail -n "+$((marked + 1))" "$state.log" | grep -c ' ready version=') -eq 2 ]]; }
start_native kv "$BATON_BIN/ledger-v1.so"
marked=0
for ((i = 0; i < $1; ++i)); do
  wait_for "two workers" are_listening
  start_peer "peer$i" "$device" "$address" --connections 4
  wait_for "both shards to be served" are_served 2
  find_all
  # Numbers of workers begin anew, too.
  ready=() owner_of=() port=0
  mark
  if ((i % 2)); then
    kill -KILL "$nic"
    wait_for "the loss of the device" has_logged 'device_lost: .*the process that is its NIC has ended'
  else
    kill -KILL "$keeper"
  fi
  wait_for "the peer to be disconnected" has_ended "peer$i"
  soon are_gone "${all[@]}"
done
say "keepers and NICs were killed, and each time the service began anew"

wait_for "two workers" are_listening
start_peer last "$device" "$address" --connections 4
find_all
{ kill -KILL "$batond" && wait "$batond"; } 2>/dev/null || true
echo settle 1<>"$work/last.in"
wait_for "peer last to be answered" peer_has_said last '"settled"'
say "a killed batond ended nothing"
# Not even a worker that cannot run is left behind.
for worker in "${!ready[@]}"; do kill -STOP "${pid_of[$worker]}"; done
kill -KILL "$keeper"
wait_for "the peer to be disconnected" has_ended last
soon are_gone "${all[@]}"
say "with the last keeper everything was gone"
