#!/usr/bin/env bash
# nvmed, both kinds, and Linux's NVMe host on Soft-RoCE: fio, a file system, 24 queues, latency, throughput.
# BATON_NVMED of them ("writes wire files latency throughput hosts"), BATON_UPGRADES (20), BATON_KILLS (50),
# BATON_SEED (any), BATON_VM_SECONDS (7200) of each machine.
set -euo pipefail
deploy/scripts/install_packages.sh vm
upgrades=${BATON_UPGRADES:-20} kills=${BATON_KILLS:-50} seed=${BATON_SEED:-$RANDOM}
machine=(deploy/vm/run_vm.sh --cpus 4 --mem 3072 --timeout "${BATON_VM_SECONDS:-7200}")

for bar in ${BATON_NVMED:-writes wire files latency throughput hosts}; do
  for kind in "BROKERED file" "NATIVE memory"; do
    read -r mode backing <<<"$kind"
    echo "$bar, $mode, $backing:"
    case $bar in
      writes) "${machine[@]}" tests/vm/nvmed.sh writes "$mode" "$backing" "$upgrades" "$kills" "$seed" 48 ;;
      wire)
        "${machine[@]}" --peer tests/vm/nvmed.sh tests/vm/nvmed.sh wire "$mode" "$backing" \
          "$upgrades" "$kills" "$seed"
        ;;
      files) "${machine[@]}" tests/vm/nvmed.sh files "$mode" "$backing" 200 10 "$seed" ;;
      latency) "${machine[@]}" tests/vm/nvmed_figures.sh latency "$mode" "$backing" 20 100 10 ;;
      throughput)
        # Both at once.
        [[ $mode == BROKERED ]] || "${machine[@]}" tests/vm/nvmed_figures.sh throughput 5 5 0.7
        ;;
      hosts) "${machine[@]}" tests/vm/nvmed.sh hosts "$mode" "$backing" "$upgrades" "$kills" "$seed" ;;
      *) echo "nvmed: no bar $bar" >&2 && exit 2 ;;
    esac
  done
done
