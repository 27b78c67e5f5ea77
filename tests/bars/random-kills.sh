#!/usr/bin/env bash
# 10,000 random kills of the ledger worker, hung and crashed, with and without standby, control and batond, under load.
set -euo pipefail
bazel test --config=run --nocache_test_results --test_output=all --test_timeout=3000 \
  --test_env=BATON_KILLS="${BATON_KILLS:-10000}" --test_env=BATON_RATE="${BATON_RATE:-12000}" \
  ${BATON_SEED:+--test_env=BATON_SEED="$BATON_SEED"} //tests/crash:random_kill_test
