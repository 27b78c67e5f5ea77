#!/usr/bin/env bash
# A keeper is killed at each entry into a system call of its taking over and at each exit, and after each
# of 1,000 instructions from its receipt of what its predecessor has left; with brokered and with native
# workers: 0 lost, 0 repeated, 0 reordered, 0 disconnected. The next keeper has the same sessions and policy.
# BATON_KEEPER_STEP=N: at every Nth of these places.
set -euo pipefail
bazel test --config=run --nocache_test_results --test_output=all --test_timeout=7200 \
  --test_env=BATON_KEEPER_STEP="${BATON_KEEPER_STEP:-1}" //tests/crash:keeper_steps_test
