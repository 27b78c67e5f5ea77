#!/usr/bin/env bash
# Tests that pass on the soft device pass on a real kernel's RDMA device, too.
# Runs its arguments, PROGRAM or PROGRAM=FILTER: which of its tests (--gtest_filter).
set -euo pipefail
export BATON_TEST_DEVICE=rdma BATON_TEST_HOST=$BATON_VM_ADDRESS

failed=0
for test in "$@"; do
  program=${test%%=*}
  filter='*'
  [[ $test != *=* ]] || filter=${test#*=}
  name=${program##*/}
  results=$BATON_VM_RESULTS/$name.xml
  "$program" --gtest_brief=1 --gtest_filter="$filter" --gtest_output="xml:$results" || failed=1
  # A filter that finds nothing passes, too. To ask the program for a list takes seconds here.
  grep -q '<testsuites tests="[1-9]' "$results" || { echo "$name: no test $filter" && failed=1; }
done
exit "$failed"
