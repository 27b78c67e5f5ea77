#!/usr/bin/env bash
# A native service under checked load on Soft-RoCE: 100 upgrades and 100 kills, in turn; 0 lost, 0 duplicated, 0 reordered.
# BATON_ALTERNATIONS (100), BATON_SEED (any), BATON_VM_SECONDS (7200).
set -euo pipefail
deploy/scripts/install_packages.sh vm
deploy/vm/run_vm.sh --timeout "${BATON_VM_SECONDS:-7200}" tests/vm/native_kills.sh alternations \
  "${BATON_ALTERNATIONS:-100}" ${BATON_SEED:+"$BATON_SEED"}
