#!/usr/bin/env bash
# Debian's rping against native pingd on Soft-RoCE, one client and eight, under kills of the owner.
# BATON_PINGS of the client (60000), BATON_PINGS_OF_EIGHT of each of eight (20000), BATON_KILLS (50),
# BATON_SEED (any), BATON_VM_SECONDS (7200).
set -euo pipefail
deploy/scripts/install_packages.sh vm
deploy/vm/run_vm.sh --timeout "${BATON_VM_SECONDS:-7200}" tests/vm/native_pingd.sh \
  "${BATON_PINGS:-60000}" "${BATON_PINGS_OF_EIGHT:-20000}" "${BATON_KILLS:-50}" ${BATON_SEED:+"$BATON_SEED"}
