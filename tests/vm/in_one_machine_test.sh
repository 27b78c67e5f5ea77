#!/usr/bin/env bash
# in_one_machine.sh: of several scripts one that fails fails alone, by its name; each has results of its own and finds
# the machine clean. The machine is a directory here, whose only process is a file, and its commands write down their
# words.
set -euo pipefail

die() { echo "in_one_machine_test: $*" >&2; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export BATON_VM_RESULTS=$work/results BATON_VM_ADDRESS=10.0.0.1 BATON_CLEANED_ROOT=$work/root TMPDIR=$work/tmp
export BATON_TRACING=$work/root/tracing PATH=$work/bin:$PATH
device=$work/root/sys/class/infiniband/rxe0/ports/1/gids
mkdir -p "$work"/{results,tmp,bin,scripts} "$device" \
  "$work"/root/{proc/sys/{kernel,vm},run/stays,dev/{shm,infiniband},sys/class/net/dummy0,tracing/events/kprobes}
echo 0000:0000:0000:0000:0000:ffff:0a00:0001 >"$device/1"
touch "$work/root/dev/infiniband/uverbs0"
for command in ip rdma chrt chown; do
  # shellcheck disable=SC2016  # expanded in it
  printf '#!/bin/sh\necho %s "$@" >>"%s"\n' "$command" "$work/said" >"$work/bin/$command"
done
# shellcheck disable=SC2016
echo '[ "$2" != show ] || echo link rxe0/1 netdev dummy0' >>"$work/bin/rdma"
printf '#!/bin/sh\necho 13\n' >"$work/bin/pgrep"
chmod +x "$work"/bin/*
# What the cleaning kills ends: no process of this machine.
# shellcheck disable=SC2317  # it calls it
kill() { rm -r "$BATON_CLEANED_ROOT/proc/$2"; }
export -f kill

cat >"$work/scripts/messy.sh" <<'END'
echo "messy: $*"
mkdir -p "$BATON_CLEANED_ROOT/proc/9999999" "$BATON_CLEANED_ROOT/run/left" "$BATON_CLEANED_ROOT/sys/class/net/other"
touch "$BATON_CLEANED_ROOT/proc/9999999/exe" "$BATON_CLEANED_ROOT/dev/shm/left" "$TMPDIR/left"
echo 2 >"$BATON_CLEANED_ROOT/proc/sys/kernel/randomize_va_space"
echo p:ack_timers >"$BATON_TRACING/kprobe_events"
echo yes >"$BATON_VM_RESULTS/judged"
exit 3
END
cat >"$work/scripts/clean.sh" <<'END'
cd "$BATON_CLEANED_ROOT"
echo "clean: $(echo proc/[0-9]* run/* dev/shm/* "$TMPDIR"/*)"
echo "clean: $(cat proc/sys/kernel/randomize_va_space tracing/kprobe_events)"
echo yes >"$BATON_VM_RESULTS/judged"
END
cat >"$work/scripts/undecided.sh" <<'END'
echo "undecided: $(echo "$BATON_VM_RESULTS"/* "$BATON_CLEANED_ROOT"/run/*)" | sed "s#$BATON_CLEANED_ROOT/##; s#$BATON_VM_RESULTS#RESULTS#"
touch "$BATON_VM_RESULTS/judged" "$BATON_CLEANED_ROOT/run/left"
[[ -e $1 ]] || { touch "$1"; exit 75; }
echo yes >"$BATON_VM_RESULTS/judged"
END
echo 'exit 75' >"$work/scripts/never.sh"
echo 'echo no verdict' >"$work/scripts/unjudged.sh"
cat >"$work/scripts/programs.sh" <<'END'
echo '<testsuites/>' >"$BATON_VM_RESULTS/1-its.xml"
END
status=0
tests/vm/in_one_machine.sh "a judges-itself $work/scripts/messy.sh two words" \
  "b judges-itself $work/scripts/clean.sh" "c judges-itself $work/scripts/unjudged.sh" \
  "d lossy $work/scripts/unjudged.sh" "e lossy $work/scripts/programs.sh" \
  "f judges-itself $work/scripts/undecided.sh $work/first" "g judges-itself $work/scripts/never.sh" \
  >"$work/out" 2>"$work/errors" || status=$?
[[ $status -eq 1 ]] || die "exit status $status with three that fail: $(<"$work/errors")"
grep -qx 'in_one_machine.sh: failed: a c g' "$work/errors" || die "it is not said which have failed: $(<"$work/errors")"
sed -e 's/ in [0-9]* s$//' -e 's#/[^ ]*/tmp/b-[^ /]*#TMPDIR#' "$work/out" | diff - <(cat <<'END'
=== a
messy: two words
=== a: FAILED with exit status 3
=== b
clean: proc/[0-9]* run/stays dev/shm/* TMPDIR/*
clean: 0
=== b: passed
=== c
no verdict
=== c: FAILED with exit status 1
=== d
no verdict
the device's counters are not judged
=== d: passed
=== e
the device's counters are not judged
=== e: passed
=== f
undecided: RESULTS/* run/stays
=== f: undecided, once more
undecided: RESULTS/* run/stays
=== f: passed
=== g
=== g: undecided, once more
=== g: FAILED with exit status 75
END
) || die "the output differs; standard error: $(<"$work/errors")"
grep -o 'name="tests/vm/[a-z]*" time="[0-9]*">\(<failure message="[^"]*"\)\?' "$work/results/cases.xml" |
  sed 's/ time="[0-9]*"//' | diff - <(cat <<'END'
name="tests/vm/a"><failure message="exit status 3"
name="tests/vm/b">
name="tests/vm/c"><failure message="exit status 1"
name="tests/vm/d">
name="tests/vm/f">
name="tests/vm/g"><failure message="exit status 75"
END
) || die "the cases differ: $(<"$work/results/cases.xml")"
[[ ! -e $work/results/judged ]] || die "there is a verdict though three have failed"
for words in 'ip link delete other' 'rdma link delete rxe0' 'rdma link add rxe0 type rxe netdev dummy0' \
  'chrt -o -p 0 13'; do
  grep -qx "$words" "$work/said" || die "\"$words\" was not called"
done

# Those that pass have one.
rm -r "$work/results"/*
tests/vm/in_one_machine.sh "b judges-itself $work/scripts/clean.sh" >"$work/out" ||
  die "exit status $?: $(<"$work/out")"
[[ -s $work/results/judged ]] || die "no verdict of those that pass"
