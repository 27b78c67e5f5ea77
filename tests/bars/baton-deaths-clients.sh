#!/usr/bin/env bash
# rping, rdma_client and Linux's NVMe host through 20 keeper kills, 5 batond restarts, 5 upgrades of Baton there and back.
# On Soft-RoCE; the host has a file system, and fio verifies what it wrote. Twice: nvmed and rdma_client's server brokered
# and rping's native, and the other way round. BATON_KILLS (20), BATON_RESTARTS (5), BATON_UPGRADES (5), BATON_SEED (any),
# BATON_VM_SECONDS (3600) of each machine.
set -euo pipefail
deploy/scripts/install_packages.sh vm
seed=${BATON_SEED:-$RANDOM}

for mode in BROKERED NATIVE; do
  echo "nvmed $mode:"
  deploy/vm/run_vm.sh --cpus 2 --mem 3072 --timeout "${BATON_VM_SECONDS:-3600}" tests/vm/baton_deaths.sh "$mode" \
    "${BATON_KILLS:-20}" "${BATON_RESTARTS:-5}" "${BATON_UPGRADES:-5}" "$seed"
done
