#!/usr/bin/env bash
# 2,000 ends and hangs of control, keeper, batond and owners, singly and in pairs, while peers come and go, on the soft
# device, brokered and native each. BATON_KILLS, BATON_SEED and BATON_RATE are baton_kill_test's.
set -euo pipefail
bazel build --config=run //tests/crash:baton_kill_test
BATON_KILLS=${BATON_KILLS:-2000} "$(bazel info bazel-bin 2>/dev/null)/tests/crash/baton_kill_test"
