#!/usr/bin/env bash
# Services of ledgers, with peers; to be sourced.
set -euo pipefail
# shellcheck source=tests/vm/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

state=/run/baton
port=7471
# Less than the machine's time, so that what all have said is shown.
# shellcheck disable=SC2034  # of wait_for
patience=120

# Not of pipes.
dump() {
  find "$state.log" "$work" -maxdepth 1 -type f '(' -name '*.log' -o -name '*.out' ')' -exec tail -n 40 {} + >&2 || true
}
trap '[[ $? -eq 0 ]] || dump' EXIT

operator() { baton --socket "$state/operator.sock" --timeout 60 "$@"; }
log_has() { grep -qE "$1" "$state.log"; }
# After mark, has_logged looks only at what has been logged since.
mark() { marked=$(wc -l <"$state.log"); }
# shellcheck disable=SC2317  # wait_for calls it
has_logged() { tail -n "+$((marked + 1))" "$state.log" >"$work/since" && grep -qE "$1" "$work/since"; }

# service_config NAME DEVICE: $service_fields are further ones.
service_config() {
  echo "services { name: \"$1\" device { rdma { device: \"$2\" } } max_connections: 16 ${service_fields:-}" \
    "hang_timeout_ms: 120000 ready_timeout_ms: 120000 yield_microseconds: 1 }"
}

# start_batond SERVICE DEVICE [SERVICE DEVICE]...: $more_services are configured, too.
start_batond() {
  local line=''
  echo "state_dir: \"$state\" ${more_services:-}" >"$work/config"
  while [[ $# -gt 0 ]]; do
    service_config "$1" "$2" >>"$work/config"
    shift 2
  done
  exec {batond}< <(exec batond --start-timeout 300 --config "$work/config" 2>"$state.log")
  read -rt 120 line <&"$batond" || true
  [[ $line == "batond ready"* ]] || die "batond: $(cat "$state.log")"
}

# start_worker SERVICE ADDRESS: and again whenever it ends, as a service manager does.
start_worker() {
  (while :; do
    ledger-v1 --socket "$state/$1.sock" --service "$1" --listen "$2:$port" >>"$work/$1.log" 2>&1 ||
      pause 0.5
  done) &
  wait_for "a worker of $1" grep -q 'ledger ready' "$work/$1.log"
}

# start_peer NAME DEVICE ADDRESS [FLAGS]: connected when it returns. DEVICE is as programs name it: rdma:rxe0.
start_peer() {
  mkfifo "$work/$1.in"
  baton-peer --device "$2" --connect "$3:$port" --json --until-stdin-closes \
    --reply-timeout-ms 600000 --drain-timeout-ms 600000 "${@:4}" \
    <>"$work/$1.in" >"$work/$1.out" 2>"$work/peer-$1.log" &
  peers[$1]=$!
  wait_for "peer $1 to be connected" peer_has_said "$1" '"connected"'
}
declare -A peers=()
peer_has_said() {
  ! grep -qs '"final"' "$work/$1.out" || [[ $2 == '"final"' ]] || die "peer $1 ended: $(cat "$work/$1.out")"
  grep -qs "$2" "$work/$1.out"
}

# has_ended NAME: by itself, and not well.
has_ended() {
  wait "${peers[$1]}" && return 1
  rm "$work/$1.in"
  grep -qE '"disconnects": ?[1-9]' "$work/$1.out"
}

# check_peer NAME: it is served, and nothing was lost, repeated or disconnected. The pipe of a peer that has ended is opened
# all the same.
check_peer() {
  echo settle 1<>"$work/$1.in"
  wait_for "peer $1 to be answered" peer_has_said "$1" '"settled"'
  echo stop 1<>"$work/$1.in"
  wait "${peers[$1]}" || die "peer $1 was not served as it should be: $(tail -n 1 "$work/$1.out")"
  rm "$work/$1.in"
}

# unanswered SERVICE COUNT: so many completions wait for the owner.
# shellcheck disable=SC2317  # wait_for calls it
unanswered() {
  local count
  count=$(operator shard list "$1" -o json |
    sed -n 's/.*"completions_unacknowledged": *"\([0-9]*\)".*/\1/p')
  [[ ${count:-0} -ge $2 ]]
}

# expect WHAT PATTERN COMMAND...: its output has it.
expect() {
  local what=$1 pattern=$2
  shift 2
  "$@" >"$work/output" 2>&1 || true
  grep -qE "$pattern" "$work/output" || die "$what: \"$pattern\" is not in what $* says: $(cat "$work/output")"
}
