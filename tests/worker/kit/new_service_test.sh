#!/usr/bin/env bash
# new_service_test.sh PACKAGE...: in a root that has the packages installed and nothing of this repository, `baton new
# service` writes a service, whose test passes, and fails when the service writes its answer over the request, and when it
# commits several messages at once. A test that is killed leaves no process behind.
set -euo pipefail
case_name=shouldWriteAServiceWhoseTestFindsDefects
# shellcheck source=tests/worker/kit/kit_root.sh
source tests/worker/kit/kit_root.sh

inside sh -c 'cd /tmp && baton new service adder && cmake -S adder -B adder/build \
  -DCMAKE_CXX_FLAGS="-Wall -Wextra -Werror -pedantic" && cmake --build adder/build' >"$work/new.log" 2>&1 ||
  die "no new service"

# test_new_service LOG [CASE]: whether the new service's own test passes, or a case of it, time after time: whether messages
# come to a worker together is chance. The case ends with the first expectation that fails.
test_new_service() {
  local stop=${2:+--gtest_repeat=20 --gtest_break_on_failure}
  inside sh -c "ulimit -c 0 && cmake --build /tmp/adder/build &&
    /tmp/adder/build/adder_test --gtest_filter='*${2:-}' $stop" >"$work/$1" 2>&1
}
# break_new_service NAME SCRIPT CASE: the case fails with what the script makes of the service, for NAME of the log.
break_new_service() {
  cp "$root/tmp/adder/adder.cpp" "$work/adder.cpp"
  sed -i "$2" "$root/tmp/adder/adder.cpp"
  cmp -s "$root/tmp/adder/adder.cpp" "$work/adder.cpp" && die "$1: its edit changes nothing"
  if test_new_service "adder-$1.log" "$3"; then die "$1: the test passes"; fi
  grep -q "RUN.*$3" "$work/adder-$1.log" || die "$1: $3 does not run"
  grep -q ': Failure$' "$work/adder-$1.log" || die "$1: $3 ends without a failed expectation"
  cp "$work/adder.cpp" "$root/tmp/adder/adder.cpp"
}
test_new_service adder.log || die "the test of a new service fails"
break_new_service over_the_request 's/= AnswerBuffer(done.connection, /= RequestBuffer(shard, done.sequence, /' KilledAtAnyCommit
break_new_service commits_batches '/EACH_COMPLETION/d' WhileNobodyServed
echo "a new service, and the test that kills and upgrades it"

# processes [NAME]: those in the root, of that name; not zombies. It starts none, so that it sees a short life, too.
processes() {
  local process name
  for process in /proc/[0-9]*; do
    if [[ $process/root -ef $root ]] && read -r name 2>/dev/null <"$process/comm" && [[ $name == "${1:-}"* ]]; then
      echo "${process#/proc/}"
    fi
  done
}
two_workers() { [[ $(processes adder | wc -l) -ge 3 ]]; } # and the test
none_is_left() { [[ -z $(processes) ]]; }
inside /tmp/adder/build/adder_test --gtest_filter='*AtRandom' --gtest_repeat=-1 >"$work/adder-killed.log" 2>&1 &
await "workers of a test" two_workers
kill -KILL "$(processes adder_test)"
await "end of all that a killed test had started: $(processes | xargs)" none_is_left
echo "a test that is killed leaves no process behind"
