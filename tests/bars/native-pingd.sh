#!/usr/bin/env bash
# Debian's rping against native pingd on Soft-RoCE, one client and eight, under upgrades and kills of the owner.
# And, in a machine of its own, against its own server, which says how many retries are Soft-RoCE's.
# BATON_PINGS of the client (60000), BATON_PINGS_OF_EIGHT of each of eight (20000), BATON_UPGRADES (20),
# BATON_KILLS (50), BATON_SEED (any), BATON_VM_SECONDS (7200) of each machine.
set -euo pipefail
pings=${BATON_PINGS:-60000} pings_of_eight=${BATON_PINGS_OF_EIGHT:-20000}
deploy/scripts/install_packages.sh vm
machine=(deploy/vm/run_vm.sh --timeout "${BATON_VM_SECONDS:-7200}")

echo "rping alone:"
"${machine[@]}" tests/vm/pingd.sh alone "$pings"
echo "native pingd:"
"${machine[@]}" tests/vm/pingd.sh native "$pings" "$pings_of_eight" "${BATON_UPGRADES:-20}" \
  "${BATON_KILLS:-50}" ${BATON_SEED:+"$BATON_SEED"}
