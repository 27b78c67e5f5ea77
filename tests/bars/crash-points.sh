#!/usr/bin/env bash
# The ledger worker killed at every named crash point, several passings each: nothing lost or repeated.
set -euo pipefail
bazel test --config=run --nocache_test_results --test_output=all //tests/crash:crash_points_test
