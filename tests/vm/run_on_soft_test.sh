#!/usr/bin/env bash
# run_on_soft.sh: exit status, arguments, programs and directory of the script, and that nothing of it is left behind:
# neither after it has failed, nor when it is ended. What escapes all the same is told, and fails it.
set -euo pipefail

die() { echo "run_on_soft_test: $*" >&2; exit 1; }
# is_gone PID: dead, or about to be reaped by another.
is_gone() { [[ ! -e /proc/$1 || $(ps -o stat= -p "$1") == Z* || ! -e /proc/$1 ]]; }
run_on_soft=$PWD/tests/vm/run_on_soft.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export TEST_TMPDIR=$work

printf '#!/bin/sh\necho a program of its own\n' >"$work/own"
chmod +x "$work/own"
cat >"$work/all of it.sh" <<'END_OF_SCRIPT'
printf '<%s>' "$@"
own
echo "$TMPDIR" >"$1"
[[ $TMPDIR == "$BATON_SOFT_DIRECTORY" ]] || exit 1
touch "$TMPDIR/file"
sleep 1000 &
echo "$!" >>"$1"
exit 7
END_OF_SCRIPT
status=0
"$run_on_soft" --program "$work/own" "$work/all of it.sh" "$work/said" 'two words' '' >"$work/out" 2>"$work/errors" ||
  status=$?
[[ $status -eq 7 ]] || die "exit status $status, not 7: $(<"$work/errors")"
[[ $(<"$work/out") == "<$work/said><two words><>a program of its own" ]] || die "it printed: $(<"$work/out")"
{ read -r directory && read -r sleeper; } <"$work/said"
[[ ! -e $directory ]] || die "$directory was left"
is_gone "$sleeper" || die "process $sleeper was left"

# It is ended, as by Bazel when its time is over. The script hears nothing of that.
cat >"$work/endless.sh" <<'END_OF_SCRIPT'
trap '' TERM
echo "$BASHPID" >"$1.new"
mv "$1.new" "$1"
while :; do sleep 1000; done
END_OF_SCRIPT
"$run_on_soft" "$work/endless.sh" "$work/pid" 2>"$work/errors" &
runner=$!
until [[ -e $work/pid ]]; do
  kill -0 "$runner" || die "it ended: $(<"$work/errors")"
done
kill "$runner"
status=0
wait "$runner" || status=$?
[[ $status -eq 143 ]] || die "exit status $status of one that was ended, not 143: $(<"$work/errors")"
is_gone "$(<"$work/pid")" || die "the script was left"

# Its group does not have this one, and nothing ends it.
cat >"$work/leaves.sh" <<'END_OF_SCRIPT'
setsid sleep 1000 &
until [[ $(ps -o pgid= -p $!) -eq $! ]]; do :; done
echo "$!" >"$1"
END_OF_SCRIPT
status=0
BATON_SOFT_PATIENCE=1 "$run_on_soft" "$work/leaves.sh" "$work/pid" 2>"$work/errors" || status=$?
[[ $status -eq 1 ]] || die "exit status $status of one that leaves a process, not 1"
grep -q 'left behind' "$work/errors" || die "it said: $(<"$work/errors")"
grep -q 'sleep 1000' "$work/errors" || die "it did not say what: $(<"$work/errors")"
is_gone "$(<"$work/pid")" || die "the process was left all the same"
echo "status, arguments, programs and what is left are as they should be"
