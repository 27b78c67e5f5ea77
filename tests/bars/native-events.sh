#!/usr/bin/env bash
# Native services on Soft-RoCE under checked load: 50 kills with shared receives, 50 handoffs, hangs.
# BATON_SECONDS (3600) is the most that each takes; BATON_SEED is that of the kills.
set -euo pipefail
deploy/scripts/install_packages.sh vm
limit=${BATON_SECONDS:-3600}
# run SCRIPT TEST ARGUMENTS...
run() { deploy/vm/run_vm.sh --timeout "$((limit + 300))" "tests/vm/$1.sh" "${@:2}"; }
# shellcheck disable=SC2086  # a seed holds no blanks
run native_kills shared_receives 50 "$limit" ${BATON_SEED:-}
run native_kills handoffs 50
run native_failures failures
