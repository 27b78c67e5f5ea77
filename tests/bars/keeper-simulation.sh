#!/usr/bin/env bash
# 300,000 simulated schedules of keepers that die between any two steps of taking over and of work, in two processes.
set -euo pipefail
bazel build --config=run //tests/simulation:keeper_simulation_test
simulation=$(bazel info bazel-bin 2>/dev/null)/tests/simulation/keeper_simulation_test
half=$(("${BATON_SCHEDULES:-300000}" / 2))
first=${BATON_FIRST_SEED:-1000001}

# run FIRST
run() {
  BATON_FIRST_SEED=$1 BATON_SCHEDULES=$half "$simulation" --gtest_filter='*EveryPromise*'
}

run "$first" &
other=$!
status=0
run $((first + half)) || status=$?
wait "$other" || status=$?
exit "$status"
