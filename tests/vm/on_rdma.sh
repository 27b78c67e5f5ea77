#!/usr/bin/env bash
# Tests of what stands on lib/verbs pass on a real kernel's RDMA device as they do on the soft one.
# Runs its arguments, PROGRAM or PROGRAM=FILTER: which of its tests (--gtest_filter).
set -euo pipefail
export BATON_TEST_DEVICE=rdma BATON_TEST_HOST=$BATON_VM_ADDRESS

failed=0
for test in "$@"; do
  program=${test%%=*}
  filter='*'
  [[ $test != *=* ]] || filter=${test#*=}
  name=${program##*/}
  # A filter that finds nothing passes, too.
  [[ $("$program" --gtest_list_tests --gtest_filter="$filter") == *$'\n  '* ]] || failed=1
  "$program" --gtest_brief=1 --gtest_filter="$filter" \
    --gtest_output="xml:$BATON_VM_RESULTS/$name.xml" || failed=1
done
exit "$failed"
