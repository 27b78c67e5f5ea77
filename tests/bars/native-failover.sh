#!/usr/bin/env bash
# Kill of a native owner to its standby's first reply: at most 1/15 of reconnecting one connection, 1/80 of 100.
# That baseline is the simplest thing without Baton, and not the fairest: clients can have connections to a warm
# standby, made before. Native workers beside these: ./run demo --mode native. Brokered ones: ./run bench failover.
# In one machine, medians of BATON_KILLS of each kind (12), by a clock that counts instructions:
# whatever else the host does is no silence.
set -euo pipefail
deploy/scripts/install_packages.sh vm
deploy/vm/run_vm.sh --count-instructions --timeout 3600 tests/vm/native_failures.sh failover "${BATON_KILLS:-12}" 15 80
