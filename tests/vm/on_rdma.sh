#!/usr/bin/env bash
# on_rdma.sh [BATON_NAME=VALUE]... PROGRAM[=FILTER]...: tests that pass on the soft device pass on a real kernel's RDMA
# device, too. Each PROGRAM is run with those variables, and does those of its tests that FILTER says (--gtest_filter).
# What the device has counted is shown at the end.
set -euo pipefail
export BATON_TEST_DEVICE=rdma BATON_TEST_HOST=$BATON_VM_ADDRESS
while [[ $1 == BATON_*=* ]]; do
  export "${1?}"
  shift
done

number=0 failed=0
for test in "$@"; do
  program=${test%%=*}
  # regions_test registers one, and others have to do without.
  if [[ $program == *worker/regions_test ]]; then echo 2; else echo 0; fi >/proc/sys/vm/nr_hugepages
  filter='*'
  [[ $test != *=* ]] || filter=${test#*=}
  name=${program##*/}
  results=$BATON_VM_RESULTS/$((number += 1))-$name.xml
  "$program" --gtest_brief=1 --gtest_filter="$filter" --gtest_output="xml:$results" || failed=1
  # A filter that finds nothing passes, too. To ask the program for a list takes seconds here.
  grep -q '<testsuites tests="[1-9]' "$results" || { echo "$name: no test $filter" && failed=1; }
done
rdma statistic show link rxe0/1 || true
exit "$failed"
