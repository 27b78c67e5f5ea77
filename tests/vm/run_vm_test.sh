#!/usr/bin/env bash
# run_vm.sh: exit status, arguments, output and time-out of the script. From a tree with blanks in its path, and with two
# machines at a time. Nothing here depends on how long a machine takes.
set -euo pipefail

die() { echo "run_vm_test: $*" >&2; exit 1; }
# Bazel's home for tests is not the user's, who has the kernel.
HOME=$(getent passwd "$(id -u)" | cut -d: -f6)
export HOME
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/a tree/deploy" "$work/called here" "$work/its programs"
cp -rL deploy/vm "$work/a tree/deploy"
run_vm="$work/a tree/deploy/vm/run_vm.sh"
cd "$work/called here"

# No machine comes up within a second.
touch "$work/nothing.sh"
status=0
"$run_vm" --timeout 1 "$work/nothing.sh" 2>"$work/console" || status=$?
[[ $status -eq 124 ]] || die "exit status $status after the time-out, not 124"
grep -q 'did not end within 1 s; the console:' "$work/console" || die "the time-out was not said"

# A script's output comes while it runs. This one is ended below.
echo 'echo first; sleep infinity' >"$work/endless.sh"
coproc machine { exec "$run_vm" "$work/endless.sh" 2>/dev/null; }

# Beside it: status, arguments, place, programs, results, and an output file that others write, too.
cat >"$work/all of it.sh" <<'END'
printf '<%s>' "$@"
echo " in $PWD"
own
echo "as $(id -un) with $(rdma link show rxe0/1 | awk '{print $4}')" >&2
touch /usr/was-here "$1"
echo 3 >"$BATON_VM_RESULTS/count of it"
exit 7
END
printf '#!/bin/sh\necho a program of its own\n' >"$work/its programs/own"
chmod +x "$work/its programs/own"
status=0
{
  echo before
  BATON_BIN="$work/its programs" "$run_vm" --results "$work/all results" "$work/all of it.sh" \
    'two words' '' "quote'" 2>"$work/errors" || status=$?
  echo after
} >"$work/out"
diff "$work/out" - <<END || die "the output differs; standard error: $(cat "$work/errors")"
before
<two words><><quote'> in $work/called here
a program of its own
after
END
[[ $status -eq 7 ]] || die "exit status $status, not 7"
# What is told of a machine that had to be started again is no output of the script.
[[ $(sed '/^vm: no start/,/^vm: started/d' "$work/errors") == "as root with ACTIVE" ]] ||
  die "standard error: $(<"$work/errors")"
[[ $(<"$work/all results/count of it") == 3 ]] || die "the results did not come back"
[[ ! -e /usr/was-here && ! -e 'two words' ]] || die "the machine wrote on the host"

# shellcheck disable=SC2154  # coproc sets it
output=${machine[0]}
read -r line <&"$output" || die "no line came"
[[ $line == first ]] || die "\"$line\" came"
# shellcheck disable=SC2154
kill "$machine_PID"
# The end of its output: the machine, which had it, is gone.
! read -r line <&"$output" || die "\"$line\" came"

# A machine that stands still before its script has begun is started again. The others below run meanwhile.
echo 'echo up' >"$work/up.sh"
mkdir "$work/stopped"
BATON_VM_STARTS="$work/starts" TMPDIR=$work/stopped "$run_vm" --boot-timeout 20 "$work/up.sh" \
  >"$work/up" 2>"$work/up_errors" &
booting=$!
until stopped=$(pgrep -f "^qemu-system.*$work/stopped/"); do
  kill -0 "$booting" || die "it ended without a machine: $(<"$work/up_errors")"
  sleep 0.1
done
kill -STOP "$stopped"

# One that stands still afterwards is ended.
mkdir "$work/still"
coproc still { TMPDIR=$work/still exec "$run_vm" --still-timeout 5 "$work/endless.sh" 2>"$work/still_errors"; }
# shellcheck disable=SC2154
read -r line <&"${still[0]}" || die "no line came: $(<"$work/still_errors")"
# shellcheck disable=SC2154
still_pid=$still_PID
kill -STOP "$(pgrep -f "^qemu-system.*$work/still/")"

# A kernel that stands still panics, and is told from other ends. /dev/kmsg, and not the console, whose writers
# do not wait until it has sent all: what is left is lost in a panic.
cat >"$work/stands_still.sh" <<'END'
echo 'watchdog: BUG: soft lockup - CPU#1 stuck for 61s!' >/dev/kmsg
echo c >/proc/sysrq-trigger
END
status=0
"$run_vm" "$work/stands_still.sh" 2>"$work/errors" || status=$?
[[ $status -eq 126 ]] || die "exit status $status of a kernel that stood still, not 126"
grep -q 'Call Trace' "$work/errors" || die "no trace was shown: $(<"$work/errors")"

# A bare machine runs its script as the first program, beside modules that it need not load.
cat >"$work/bare.sh" <<'END'
#!/bin/busybox sh
/bin/busybox mount -t proc proc /proc
set -- /modules/*
echo  # ends a line of the firmware's
[ -e "$1" ] && echo "bare, $(/bin/busybox grep -c . /proc/modules) loaded"
echo o >/proc/sysrq-trigger
/bin/busybox sleep 60
END
"$run_vm" --bare "$work/bare.sh" 2>"$work/errors" | tr -d '\r' >"$work/out" ||
  die "exit status $? of a bare machine: $(<"$work/errors")"
grep -qx 'bare, 0 loaded' "$work/out" || die "a bare machine showed: $(<"$work/out")"
status=0
"$run_vm" --bare "$work/bare.sh" argument 2>"$work/errors" || status=$?
[[ $status -eq 2 ]] || die "exit status $status of a bare machine with an argument, not 2"

status=0
wait "$still_pid" || status=$?
[[ $status -eq 126 ]] || die "exit status $status of a machine that stood still, not 126"
grep -q '^vm: the machine stood still; the console:' "$work/still_errors" || die "not told: $(<"$work/still_errors")"

# The one that stood still at first.
wait "$booting" || die "exit status $? of one that was started again: $(<"$work/up_errors")"
[[ $(<"$work/up") == up ]] || die "it said: $(<"$work/up")"
grep -qx 'vm: no start within 20 s; the console:' "$work/up_errors" || die "not told: $(<"$work/up_errors")"
[[ $(wc -l <"$work/starts") -ge 2 ]] || die "the starts were not counted: $(<"$work/starts")"

echo "status, arguments, output, results and time-out are as they should be"
