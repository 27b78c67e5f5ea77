#!/usr/bin/env bash
# What `baton inspect` shows of a native service under checked load: of its living driver, and of a file. Then the driver
# is killed: its connections and workers end, and the next one serves.
set -euo pipefail
# shellcheck source=tests/vm/ledger_common.sh
source "$(dirname "$0")/ledger_common.sh"
# shellcheck source=tests/vm/native_common.sh
source "$(dirname "$0")/native_common.sh"

# looks PATTERN ARGUMENTS...: at everything, of which nothing is invalid.
looks() {
  local pattern=$1
  shift
  baton --state-dir "$state" inspect "$@" --queues --work-requests --state --decoder \
    "$BATON_BIN/ledger-state" >"$work/arena" 2>&1 || die "inspect $*: $(cat "$work/arena")"
  grep -qE "$pattern" "$work/arena" || die "\"$pattern\" is not in what inspect $* shows: $(cat "$work/arena")"
  ! grep -q '^Invalid' "$work/arena" || die "inspect $*: $(cat "$work/arena")"
}

start_native kv "$BATON_BIN/ledger-v1.so"
wait_for "two workers" are_ready 2
start_peer checked "$device" "$address" --connections 4
wait_for "both shards to be served" are_served 2
looks '^Kind: +native' kv
looks 'client [0-9]+, [0-9]+ requests, total' kv
looks '^connection [0-9]+ +receive +[0-9]+ +posted +RECEIVE' kv
looks '^Queue pairs: +[0-9]+ free, [1-9][0-9]* taken' kv --shard 0
say "a native service under load"

# snapshot WHAT: of it, as the file shows it.
snapshot() {
  baton --state-dir "$state" snapshot kv "$work/$1" >"$work/saved" 2>&1 || die "$(cat "$work/saved")"
  looks '^Kind: +native' --offline "$work/$1"
  looks 'client [0-9]+, [0-9]+ requests, total' --offline "$work/$1"
}
snapshot living
say "a native service under load, also in a file of no one moment"

follow
former=("${pid_of[@]}")
ready=() owner_of=() pid_of=()
[[ $device != soft ]] || port=0
kill -KILL "$(pgrep -P "$batond" -x baton-driver)"
wait_for "the peer to be disconnected" has_ended checked
soon are_gone "${former[@]}"
wait_for "two new workers" are_ready 2
start_peer anew "$device" "$address" --connections 4
looks '^Connections: +4 of 16' kv
check_peer anew
say "with its driver everything ended, and the next one serves"
