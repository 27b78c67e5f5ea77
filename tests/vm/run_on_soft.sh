#!/usr/bin/env bash
# run_on_soft.sh [--program FILE]... SCRIPT [ARGUMENTS]: what a soft_test is to Bazel.
# All that SCRIPT writes lies in a directory that is deleted afterwards, and all that it has started is killed. A test
# that leaves a process behind for $BATON_SOFT_PATIENCE seconds (30) fails.
set -euo pipefail

# Beside each other, and not links: batond finds its children beside itself.
export BATON_BIN=$TEST_TMPDIR/bin
export PATH=$BATON_BIN:$PATH
mkdir -p "$BATON_BIN"
while [[ $1 == --program ]]; do
  cp -L "$2" "$BATON_BIN"
  shift 2
done
# The path of a socket has to be short, and those of another user's workers open to them.
directory=$(mktemp -d /tmp/baton.XXXXXX)
chmod 755 "$directory"

# remaining: processes that SCRIPT has started, and these and so on. Each has this in its environment.
remaining() { grep -lzxsF "BATON_SOFT_DIRECTORY=$directory" /proc/[0-9]*/environ | cut -d/ -f3; }
# The script's own are a process group. Drivers and control outlive their batond, and end when no other could find them.
stop_all() {
  local tries
  { kill -KILL -- "-$script" && wait "$script"; } 2>/dev/null || true
  find "$directory" \( -name '*.keeper.lock' -o -name control.lock \) -delete
  for ((tries = 0; tries < ${BATON_SOFT_PATIENCE:-30} * 10; ++tries)); do
    [[ -n $(remaining) ]] || return 0
    sleep 0.1
  done
  echo "run_on_soft: processes are left behind:" >&2
  ps -o pid,ppid,stat,args -p "$(remaining | paste -sd,)" >&2 || true
  remaining | xargs -r kill -KILL || true
  return 1
}
finish() {
  local status=$?
  stop_all || status=1
  rm -rf "$directory"
  exit "$status"
}

set -m  # for a process group of its own
TMPDIR=$directory BATON_SOFT_DIRECTORY=$directory bash "$@" &
script=$!
trap finish EXIT
trap 'exit 143' TERM INT
wait "$script"
