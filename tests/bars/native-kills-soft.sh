#!/usr/bin/env bash
# 10,000 drivers killed at random on the soft device in each of eight behaviours of its NIC, which hears
# rings late, repeated, reordered or before they come, for example; and 10,000 twice on a NIC without
# any: owners that sleep, and owners that do not. 0 lost, 0 repeated, 0 reordered.
# BATON_NATIVE_KILLS and BATON_NATIVE_SEED are native_kills_test's.
set -euo pipefail
bazel build --config=run //tests/native:native_kills_test
export BATON_NATIVE_KILLS=${BATON_NATIVE_KILLS:-10000}
"$(bazel info bazel-bin 2>/dev/null)/tests/native/native_kills_test"
