#!/usr/bin/env bash
# 500 ends and hangs of control, keeper, batond and owners, singly and in pairs, while peers come and go, on Soft-RoCE,
# brokered and native each. BATON_KILLS, BATON_SEED and BATON_RATE are baton_kill_test's.
set -euo pipefail
deploy/scripts/install_packages.sh vm
bazel build --config=run //tests/crash:baton_kill_test
test=$(bazel info bazel-bin 2>/dev/null)/tests/crash/baton_kill_test

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cat >"$work/kills.sh" <<'END'
export BATON_TEST_DEVICE=rdma BATON_TEST_HOST=$BATON_VM_ADDRESS BATON_KILLS=$2
[[ -z $3 ]] || export BATON_SEED=$3
"$1" --gtest_filter='*BatonKillTest*'
rdma statistic show link rxe0/1
END
./run vm --timeout 14400 "$work/kills.sh" "$test" "${BATON_KILLS:-500}" "${BATON_SEED:-}"
