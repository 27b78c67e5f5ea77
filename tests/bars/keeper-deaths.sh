#!/usr/bin/env bash
# 100 keepers of a service die in a row, with brokered workers and with native ones: peers notice nothing, and
# driver, batond and control have no descriptor, process or memory more than before.
set -euo pipefail
bazel test --config=run --nocache_test_results --test_output=all --test_timeout=3600 \
  --test_env=BATON_KEEPER_DEATHS="${BATON_KEEPER_DEATHS:-100}" \
  --test_filter='*shouldGoUnnoticedByPeersAndWorkers' //tests/system:keeper_death_test
