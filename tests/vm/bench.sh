#!/usr/bin/env bash
# The benchmark of the data path runs over raw verbs and over Baton, and has a figure for everything
# that it is to compare. How large they are is not judged here.
set -euo pipefail

export BATON_BENCH_NO_PERFTEST=1
deploy/vm/bench_rdma.sh rdma_bench --rounds 1 --scale 0.01
json=$BATON_VM_RESULTS/rdma.json
positive='([1-9]|0\.[0-9]*[1-9])'
for metric in echo_64B_p50 echo_64B_p99 write_64B_p50 write_64B_p99 messages_64B write_4KiB \
  write_64KiB; do
  grep -Eq "\"$metric\":\{\"to_polling\":${positive}[0-9.]*,\"to_events\":$positive" "$json" ||
    { echo "no ratios of $metric in: $(<"$json")" && exit 1; }
done
for side in polling events brokered native; do
  grep -Eq "\"$side\":\{\"metrics\":\{\"echo_64B_p50\":$positive" "$json" ||
    { echo "no figures of $side in: $(<"$json")" && exit 1; }
  grep -Eq "\"$side\":\{.*\"server_running_us\":$positive" "$json" ||
    { echo "no processor time of $side in: $(<"$json")" && exit 1; }
done
# Of the host, if the machine was up for long enough to be told.
grep -q '"others_cores":' "$json"

# Neither side has run out of receives, and nothing was sent again.
counters=$(rdma statistic show link rxe0/1)
for counter in completer_retry_err rcvd_rnr_err send_rnr_err; do
  grep -q "$counter 0 " <<<"$counters " || { echo "$counter is not 0: $counters" && exit 1; }
done
