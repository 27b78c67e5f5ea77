#!/usr/bin/env bash
# What tests in the virtual machine, and native ones on the soft device, have in common; to be sourced.
set -euo pipefail

work=$(mktemp -d)
mkfifo "$work/nothing"

say() { echo "$SECONDS s: $*"; }  # since it was started
# Without a process: to start one takes long here.
pause() { read -rt "$1" <>"$work/nothing" || true; }
die() {
  echo "${0##*/}: $*" >&2
  exit 1
}

# The exit status of a script that can say nothing of what it tests, EX_TEMPFAIL of sysexits(3). It is run once more.
# shellcheck disable=SC2034  # by who sources this
undecided=75

# random_addresses: programs that start from here on have their memory elsewhere each time, as everywhere but in
# the machine, so that an address that one of them leaves in shared memory is another's nonsense.
random_addresses() { echo 2 >/proc/sys/kernel/randomize_va_space; }

# wait_for WHAT COMMAND...: until it holds, for $patience seconds where a script says so, and else for
# the machine's time.
wait_for() {
  local what=$1 deadline=$((SECONDS + ${patience:-1000000}))
  say "waiting for $what"
  shift
  until "$@"; do
    [[ $SECONDS -lt $deadline ]] || die "waited in vain for $what"
    pause "${look_again:-0.5}"
  done
}

# What the keeper says, in batond's log: to ask `baton` takes seconds here.
# events STATE_DIR
events() { sed -nE 's/.*\[baton-(keeper|driver)\] \[info\] //p' "$1.log"; }
