#!/usr/bin/env bash
# Kill of a native owner to its standby's first reply: at most 1/15 of reconnecting one connection, 1/80 of 100.
# In one machine, medians; it wants a host that has two processors to spare: what the host takes from
# the machine is silence, too ("without a kill"). BATON_KILLS of each kind (30).
set -euo pipefail
deploy/scripts/install_packages.sh vm
deploy/vm/run_vm.sh --timeout 3600 tests/vm/native_failover.sh "${BATON_KILLS:-30}" "${BATON_KILLS:-30}" 15 80
