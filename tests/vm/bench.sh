#!/usr/bin/env bash
# bench.sh ratios | figures: the suites of an RDMA device run over raw verbs and over Baton, and have a figure for
# everything that they are to compare. ratios: that of the data path, of which no ratio is worse than the recorded one;
# what else runs on the host would be measured, too. figures: the others, of which no figure is judged.
set -euo pipefail
# shellcheck source=tests/vm/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
# shellcheck source=tests/vm/rxe_common.sh
source "$(dirname "${BASH_SOURCE[0]}")/rxe_common.sh"

positive='([1-9]|0\.[0-9]*[1-9])'
# Neither side has run out of receives, and nothing was lost.
judge_device() { statistics | check_counters || die "the device has lost something"; }

measure_ratios() {
  local measured=0 errors json workload side to ratio
  export BATON_BENCH_NO_PERFTEST=1
  errors=$work/errors
  deploy/vm/bench_rdma.sh rdma_bench --rounds 5 --scale 0.05 \
    --recorded tests/bench/recorded.txt 2>"$errors" || measured=$?
  cat "$errors" >&2
  # An undecided comparison is reported below, when nothing else has failed.
  [[ $measured -eq 0 || $measured -eq 3 ]] || exit "$measured"
  json=$(<"$BATON_VM_RESULTS/rdma.json")
  for workload in echo_64B write_64B read_64B fetch_add messages_batch_{8,32,64} \
    {write,read}_{4KiB,64KiB,1MiB}; do
    for side in brokered native; do
      for to in polling events; do
        grep -Eq "\"${workload}_${side}_to_$to\":\{\"value\":$positive" <<<"$json" ||
          die "no ratio of $workload, $side to $to, in: $json"
      done
    done
    for ratio in relayed_to_polling brokered_to_relayed; do
      grep -Eq "\"${workload}_$ratio\":\{\"value\":$positive" <<<"$json" ||
        die "no ratio of $workload, $ratio, in: $json"
    done
    for side in polling events brokered native relayed; do
      grep -Eq "\"${workload}_${side}_cpu\":\{\"value\":$positive" <<<"$json" ||
        die "no processor time of $workload, $side, in: $json"
    done
  done
  # This figure is the host's. It is null if the machine was not up for long enough to be told.
  grep -q '"others_cores":' <<<"$json"
  judge_device
  tests/bench/end_as_measured.sh RecordedRatios.rdma "$measured" "$errors" "$BATON_VM_RESULTS/recorded.xml"
}

measure_figures() {
  local json ratio way
  deploy/vm/bench_rdma.sh connections_bench --rounds 1 --scale 0.1 --connections 1,100
  json=$(<"$BATON_VM_RESULTS/connections.json")
  for ratio in {echo_1,echo_100}_{brokered,native}_to_polling connect_100_{brokered,native}_to_events \
    echo_100_to_1_{polling,events,brokered,native}; do
    grep -Eq "\"$ratio\":\{\"value\":$positive" <<<"$json" || die "no $ratio in: $json"
  done

  deploy/vm/bench_rdma.sh failover_bench --device rdma --rounds 1 --events 1 --connections 1,20 \
    --mapped-mib 0 --only handoff,hot_crash,reconnect
  json=$(<"$BATON_VM_RESULTS/failover.json")
  for ratio in {handoff,hot_crash}_{1,20}_to_reconnect handoff_20_to_1; do
    grep -Eq "\"$ratio\":\{\"value\":$positive" <<<"$json" || die "no $ratio in: $json"
  done

  deploy/vm/bench_rdma.sh memory_bench --device rdma --rounds 1 --scale 0.01 --largest-mib 1
  json=$(<"$BATON_VM_RESULTS/memory.json")
  for way in dynamic cached pipes_{1,2,6}x{16,64,256} {sendfile,dynamic,cached}_{brokered,native}; do
    for ratio in "file_${way}_1MiB_to_static" "file_${way}_1MiB_registered_to_static"; do
      grep -Eq "\"$ratio\":\{\"value\":$positive" <<<"$json" || die "no $ratio in: $json"
    done
  done
  judge_device
}

count_timers
case ${1:-} in
  ratios) measure_ratios ;;
  figures) measure_figures ;;
  *) die "no measurement \"${1:-}\"" ;;
esac
