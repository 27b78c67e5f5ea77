#!/usr/bin/env bash
# The benchmark of the data path runs over raw verbs and over Baton, has a figure for everything that it
# is to compare, and no ratio is twice as bad as the recorded one.
set -euo pipefail
# shellcheck source=tests/vm/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
# shellcheck source=tests/vm/rxe_common.sh
source "$(dirname "${BASH_SOURCE[0]}")/rxe_common.sh"

count_timers
export BATON_BENCH_NO_PERFTEST=1
deploy/vm/bench_rdma.sh rdma_bench --rounds 3 --scale 0.05 \
  --recorded tests/bench/recorded.txt
json=$(<"$BATON_VM_RESULTS/rdma.json")
positive='([1-9]|0\.[0-9]*[1-9])'
for workload in echo_64B write_64B read_64B fetch_add messages_batch_{8,32,64} \
  {write,read}_{4KiB,64KiB,1MiB}; do
  for side in brokered native; do
    for to in polling events; do
      grep -Eq "\"${workload}_${side}_to_$to\":\{\"value\":$positive" <<<"$json" ||
        { echo "no ratio of $workload, $side to $to, in: $json" && exit 1; }
    done
  done
  for side in polling events brokered native; do
    grep -Eq "\"${workload}_${side}_cpu\":\{\"value\":$positive" <<<"$json" ||
      { echo "no processor time of $workload, $side, in: $json" && exit 1; }
  done
done
# Of the host, if the machine was up for long enough to be told.
grep -q '"others_cores":' <<<"$json"

# Neither side has run out of receives, and nothing was lost.
statistics | check_counters || { echo "the device has lost something" && exit 1; }
