#!/usr/bin/env bash
# 1,000 owners killed or hung at random under checked load on Soft-RoCE: 0 lost, 0 duplicated.
# BATON_KILLS and BATON_SEED are random_kill_test's.
set -euo pipefail
deploy/scripts/install_packages.sh vm
bazel build --config=run //tests/crash:random_kill_test
test=$(bazel info bazel-bin 2>/dev/null)/tests/crash/random_kill_test

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cat >"$work/kills.sh" <<'END'
export BATON_TEST_DEVICE=rdma BATON_TEST_HOST=$BATON_VM_ADDRESS BATON_KILLS=$2
[[ -z $3 ]] || export BATON_SEED=$3
"$1" --gtest_filter='*.shouldLoseAndRepeatNothing'
rdma statistic show link rxe0/1
END
./run vm --timeout 28800 "$work/kills.sh" "$test" "${BATON_KILLS:-1000}" "${BATON_SEED:-}"
