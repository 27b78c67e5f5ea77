#!/usr/bin/env bash
# 1,000,000 simulated schedules of a whole service, in two processes, each interleaving from a seed.
set -euo pipefail
bazel build --config=run //tests/simulation:simulate
simulate=$(bazel info bazel-bin 2>/dev/null)/tests/simulation/simulate
half=$(("${BATON_SCHEDULES:-1000000}" / 2))
first=${BATON_FIRST_SEED:-1000001}
"$simulate" --first "$first" --schedules "$half" &
other=$!
status=0
"$simulate" --first $((first + half)) --schedules "$half" || status=$?
wait "$other" || status=$?
exit "$status"
