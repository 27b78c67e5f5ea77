#!/usr/bin/env bash
# Debian's rping and rdma_client against pingd on Soft-RoCE, under upgrades and kills, in one machine and across two.
# BATON_PINGS of the client (60000), BATON_PINGS_OF_EIGHT of each of eight (20000), BATON_UPGRADES (20), BATON_KILLS (50), BATON_VM_SECONDS (7200) of each machine.
set -euo pipefail
pings=${BATON_PINGS:-60000} pings_of_eight=${BATON_PINGS_OF_EIGHT:-20000}
upgrades=${BATON_UPGRADES:-20} kills=${BATON_KILLS:-50}

deploy/scripts/install_packages.sh vm
faulty=//worker/examples/pingd:pingd-v1-test-hooks
bazel build --config=run "$faulty"
faulty=$(bazel info bazel-bin 2>/dev/null)/worker/examples/pingd/${faulty##*:}
machine=(deploy/vm/run_vm.sh --timeout "${BATON_VM_SECONDS:-7200}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

echo "rping alone:"
"${machine[@]}" tests/vm/pingd.sh alone "$pings"
echo "pingd:"
"${machine[@]}" tests/vm/pingd.sh brokered "$pings" "$pings_of_eight" "$upgrades" "$kills" "$faulty"

# A peer's script has no arguments.
echo "exec $PWD/tests/vm/pingd.sh $pings $pings_of_eight" >"$work/peer.sh"
"${machine[@]}" --peer "$work/peer.sh" tests/vm/pingd.sh wire "$upgrades" "$kills"
