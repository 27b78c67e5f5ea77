#!/usr/bin/env bash
# native_failover.sh KILLS KILLS_OF_100 [RATIO_OF_1 RATIO_OF_100]: how long a peer hears nothing when
# the owner of a native service is killed, beside how long when a process without Baton is, whose warm
# successor listens at once and to which the peer connects again as fast as it can: with one
# connection and with 100. Fails when a median is not so many times shorter.
#
# With one connection the peer has one request open at any time, so that its longest silence is never
# shorter than from the kill to the successor's first reply. With 100 each has a request every 100 ms
# (closer, and the machine does nothing else), and what counts is the connection that waits longest.
set -euo pipefail
# shellcheck source=tests/vm/ledger_common.sh
source "$(dirname "$0")/ledger_common.sh"
# shellcheck source=tests/vm/native_common.sh
source "$(dirname "$0")/native_common.sh"
ratio_of_1=${3:-0} ratio_of_100=${4:-0}
declare -A kills=([1]=$1 [100]=$2) load=([1]='--window 1' [100]='--rate 1000')

# reads PEER PATTERN: until the peer says it; then that line is $said. Starts no process.
reads() {
  local line
  until while IFS= read -r line <&"$output"; do
    said=$partly$line partly=''
    [[ $said != *"$2"* ]] || break
  done && [[ $said == *"$2"* ]]; do
    partly+=$line
    pause 0.001
  done
}
# window PEER FILE: ends a window of the peer's, and adds its longest silence to FILE.
window() {
  echo "mark window" >"$work/$1.in"
  reads "$1" '"window"'
  [[ $said =~ '"max_silence_us":'([0-9.]+) ]] && echo "${BASH_REMATCH[1]}" >>"$2"
}
# measure PEER PID: kills the process, and ends the window as soon as each connection was answered a
# request that was made after that: a machine that starts programs has silences of its own.
measure() {
  pause 0.2
  window "$1" /dev/null
  pause 0.02
  window "$1" "$work/quiet.$1"
  kill -KILL "$2"
  echo settle >"$work/$1.in"
  reads "$1" '"settled"'
  window "$1" "$work/silences.$1"
}

# native CONNECTIONS
native() {
  local i owner peer=native$1
  state=/run/native$1 port=$((7400 + $1))
  owner_of=() ready=()
  start_native kv "$BATON_BIN/ledger-v1.so" "shards: 1 max_connections: 128"
  wait_for "two workers" are_ready 2
  # shellcheck disable=SC2086  # words
  start_peer "$peer" rxe0 "$BATON_VM_ADDRESS" --connections "$1" ${load[$1]}
  wait_for "the shard to be served" are_served 1
  exec {output}<"$work/$peer.out"
  partly=''
  for ((i = 0; i < kills[$1]; ++i)); do
    follow
    owner=${owner_of[0]}
    measure "$peer" "${pid_of[$owner]}"
    soon went_on "$owner" 2
  done
  check_peer "$peer"
  blackouts
  kill "$batond"
  wait "$batond" || die "batond did not end well: $(tail -n 3 "$state.log")"
}

# baseline CONNECTIONS
baseline() {
  local i peer=baseline$1 server former
  port=$((7600 + $1))
  start_baseline "$1"
  soon grep -q 'ready port' "$work/baseline.$server"
  # shellcheck disable=SC2086  # words
  start_peer "$peer" rxe0 "$BATON_VM_ADDRESS" --connections "$1" ${load[$1]} --reconnect
  exec {output}<"$work/$peer.out"
  partly=''
  for ((i = 0; i < kills[$1]; ++i)); do
    former=$server
    start_baseline "$1" --wait-for-pid "$former"
    soon grep -q 'warm' "$work/baseline.$server"
    measure "$peer" "$former"
    [[ $said == *"\"disconnects\":$1,"* ]] || die "not all were disconnected: $said"
  done
  check_peer "$peer"
  kill "$server"
}
# start_baseline CONNECTIONS [FLAGS]: its pid is $server.
start_baseline() {
  ledger-baseline --listen "$BATON_VM_ADDRESS:$port" --device rdma --connections "$1" \
    "${@:2}" >"$work/baseline.new" 2>"$work/baseline.log" &
  server=$!
  mv "$work/baseline.new" "$work/baseline.$server"
}

# quantile Q FILE: of the numbers there, by the nearest rank.
quantile() {
  sort -n "$2" | awk -v q="$1" '{ v[NR] = $1 } END { r = q * NR; i = int(r); print v[i < r ? i + 1 : i] }'
}

for count in 1 100; do
  baseline "$count"
  native "$count"
done
table() {
  local one
  for one in baseline1 native1 baseline100 native100; do
    echo "$one: $(wc -l <"$work/silences.$one") kills, silence in us p50 $(quantile 0.5 "$work/silences.$one")," \
      "p99 $(quantile 0.99 "$work/silences.$one"); without a kill p50 $(quantile 0.5 "$work/quiet.$one")," \
      "p99 $(quantile 0.99 "$work/quiet.$one")"
  done
}
table
failed=0
# ratio NATIVE BASELINE WANTED
ratio() {
  awk -v native="$(quantile 0.5 "$work/silences.$1")" -v other="$(quantile 0.5 "$work/silences.$2")" \
    -v what="$1 : $2" -v wanted="$3" 'BEGIN {
      printf "%s = 1 : %.1f (wanted: 1 : %s)\n", what, other / native, wanted
      exit other / native < wanted }' || failed=1
}
ratio native1 baseline1 "$ratio_of_1"
ratio native1 baseline100 "$ratio_of_100"
ratio native100 baseline100 0
exit "$failed"
