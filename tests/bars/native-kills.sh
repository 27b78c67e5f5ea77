#!/usr/bin/env bash
# 3,000 drivers killed at random on Soft-RoCE with the device's queues in their hands, twice: owners
# that sleep, and owners that do not. 0 lost, 0 repeated, 0 reordered.
# BATON_NATIVE_KILLS and BATON_NATIVE_SEED are native_kills_test's.
set -euo pipefail
deploy/scripts/install_packages.sh vm
bazel build --config=run //tests/native:native_kills_test
test=$(bazel info bazel-bin 2>/dev/null)/tests/native/native_kills_test

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cat >"$work/kills.sh" <<'END'
export BATON_NATIVE_KILLS=$2
[[ -z $3 ]] || export BATON_NATIVE_SEED=$3
"$1"
rdma statistic show link rxe0/1
END
./run vm --timeout 7200 "$work/kills.sh" "$test" "${BATON_NATIVE_KILLS:-3000}" \
  "${BATON_NATIVE_SEED:-}"
