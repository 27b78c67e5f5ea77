#!/usr/bin/env bash
# catch_mutant.sh NUMBER FIRST PROGRAM ARGUMENTS...: passes when the defect is caught by a check that was
# written for it: the test case fails, a schedule breaks a promise, or an invariant is found broken.
# A program that crashes, is killed or does not start has caught nothing. NUMBER 0: the program has no
# other code than the broken one; otherwise it has to pass without the defect. FIRST: the seed of the first schedule,
# in place of which BATON_FIRST_SEED names another one.
set -euo pipefail
unset XML_OUTPUT_FILE  # it would say that this test has failed
number=$1 first=${BATON_FIRST_SEED:-$2} program=$3
shift 3
# A case with the defect may wait to the end for what never comes. Without the defect it has as long.
export BATON_PUMP_MS=${BATON_PUMP_MS:-3000}
output=$(mktemp)
trap 'rm -f "$output"' EXIT

# run NUMBER FIRST SCHEDULES ARGUMENTS...
run() {
  local number=$1 first=$2 schedules=$3 status=0
  shift 3
  if [[ $1 == --deep ]]; then set -- "$@" --first "$first" --schedules "$schedules"; fi
  BATON_MUTANT=$number BATON_FIRST_SEED=$first BATON_SCHEDULES=$schedules "$program" "$@" >"$output" 2>&1 || status=$?
  return "$status"
}

if [[ $number -ne 0 ]] && ! run 0 1 20 "$@"; then
  tail -n 40 "$output"
  echo "it fails without the defect, too"
  exit 1
fi
schedules=20000
if [[ $1 != --deep ]]; then
  schedules=8000
  "$program" --gtest_list_tests "$1" | grep '^  ' >/dev/null || { echo "there is no case $1"; exit 1; }
elif [[ $2 -eq 1 ]]; then
  schedules=1000
fi
status=0
run "$number" "$first" "$schedules" "$@" || status=$?
tail -n 20 "$output"
case $status in
  0) echo "the defect was not noticed" && exit 1 ;;
  1) how=$(grep -m1 -E '^seed [0-9]+: |^\[  FAILED  \]' "$output") ;;
  134) how=$(grep -m1 'broken invariant: ' "$output") ;;
  *) how='' ;;
esac
if [[ -z $how ]]; then
  echo "it ended with status $status, and no check has said why"
  exit 1
fi
echo "caught: $how"
