#!/usr/bin/env bash
# 500 ends and hangs of control, keeper, batond and owners, singly and in pairs, while peers come and go, on Soft-RoCE,
# brokered and native each. BATON_KILLS, BATON_SEED and BATON_RATE are baton_kill_test's.
set -euo pipefail
deploy/scripts/install_packages.sh vm
bazel build --config=run //tests/crash:baton_kill_test
./run vm --timeout 14400 tests/vm/on_rdma.sh BATON_KILLS="${BATON_KILLS:-500}" \
  ${BATON_SEED:+BATON_SEED="$BATON_SEED"} \
  "$(bazel info bazel-bin 2>/dev/null)/tests/crash/baton_kill_test=*BatonKillTest*"
