#!/usr/bin/env bash
# 1,000 random operator commands of four clients, workers and control killed in between, under a checked load.
set -euo pipefail
bazel test --config=run --nocache_test_results --test_output=all --test_timeout=1800 \
  --test_env=BATON_COMMANDS="${BATON_COMMANDS:-1000}" \
  ${BATON_SEED:+--test_env=BATON_SEED="$BATON_SEED"} //tests/system:random_commands_test
