#!/usr/bin/env bash
# The ledger worker killed at every named crash point, several passings each, on both devices: nothing lost or repeated.
set -euo pipefail
bazel test --config=run --nocache_test_results --test_output=all //tests/crash:crash_points_test
deploy/scripts/install_packages.sh vm
test=$(bazel info bazel-bin 2>/dev/null)/tests/crash/crash_points_test
BATON_BIN=$PWD/out/bin deploy/vm/run_vm.sh --timeout 1800 tests/vm/on_rdma.sh "$test"
