#!/usr/bin/env bash
# batond, keeper and control with 64 idle connections use under 1 % of a core in all.
set -euo pipefail
bazel test --config=run --nocache_test_results --test_output=all \
  --test_env=BATON_IDLE_SECONDS="${BATON_IDLE_SECONDS:-30}" //tests/system:idle_test
