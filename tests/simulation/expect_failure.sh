#!/usr/bin/env bash
# expect_failure.sh PROGRAM CASE: passes when this case of a gtest program exists and fails.
set -euo pipefail
# Of a case that goes by schedules, and ends with the first one that breaks: this many are enough.
export BATON_SCHEDULES=8000
"$1" --gtest_list_tests --gtest_filter="$2" | grep -q '^  ' || { echo "no case $2"; exit 1; }
if "$1" --gtest_filter="$2"; then
  echo "the defect was not noticed"
  exit 1
fi
echo "caught: it fails"
