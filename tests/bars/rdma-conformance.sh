#!/usr/bin/env bash
# The conformance tests of lib/verbs pass on a real kernel's RDMA device (in a virtual machine).
set -euo pipefail

# In the machine: runs the test programs that are its arguments.
if [[ -n ${BATON_VM:-} ]]; then
  failed=0
  for program in "$@"; do
    echo "--- ${program##*/}"
    # A filter that finds nothing passes, too.
    "$program" --gtest_list_tests --gtest_filter='*/rdma' | grep -q . || failed=1
    "$program" --gtest_brief=1 --gtest_filter='*/rdma' || failed=1
  done
  rdma statistic show link rxe0/1
  exit "$failed"
fi

deploy/scripts/install_packages.sh vm
names=(errors_test connection_manager_test waiting_test messages_test)
bazel build --config=run "${names[@]/#///tests/lib/verbs:}"
exec deploy/vm/run_vm.sh --timeout "${BATON_VM_SECONDS:-1800}" "$0" \
  "${names[@]/#/$(bazel info bazel-bin 2>/dev/null)/tests/lib/verbs/}"
