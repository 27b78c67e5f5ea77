#!/usr/bin/env bash
# bench_rdma.sh SUITE [ARGUMENTS]: a suite of the benchmark on the device of the virtual machine. That
# of the data path comes after figures of perftest, which others wrote, for the same device.
set -euo pipefail

# perftest PROGRAM SIZE COLUMN ARGUMENTS: of the line of results for SIZE; nothing when it fails.
perftest() {
  local program=$1 size=$2 column=$3 server
  shift 3
  set -- -d rxe0 -x 1 -F -s "$size" "$@"
  "$program" "$@" >/dev/null 2>&1 &
  server=$!
  for ((i = 0; i < 50; ++i)); do
    "$program" "$@" "$BATON_VM_ADDRESS" 2>/dev/null |
      awk -v size="$size" -v column="$column" '$1 == size { print $column; found = 1 } END { exit !found }' &&
      break
    sleep 0.1  # until the server listens
  done
  kill "$server" 2>/dev/null || true
  wait "$server" 2>/dev/null || true
}

reference=()
add() { [[ -z $2 ]] || reference+=(--reference "$1=$2"); }
if [[ ${1##*/} == rdma_bench && -z ${BATON_BENCH_NO_PERFTEST:-} ]]; then
  add ib_send_lat_64B_half_round_trip_us "$(perftest ib_send_lat 64 5 -n 2000)"
  add ib_write_lat_64B_half_round_trip_us "$(perftest ib_write_lat 64 5 -n 2000)"
  add ib_write_bw_4KiB_MiB_per_s "$(perftest ib_write_bw 4096 4 -n 5000 -t 16)"
  add ib_write_bw_64KiB_MiB_per_s "$(perftest ib_write_bw 65536 4 -n 1000 -t 16)"
fi
exec "$@" --address "$BATON_VM_ADDRESS" --output "$BATON_VM_RESULTS" "${reference[@]}"
