#!/usr/bin/env bash
# bench_rdma.sh PROGRAM [ARGUMENTS]: a suite of the benchmark, or the demonstration, on the device of the virtual
# machine. The suite of the data path comes after figures of perftest, which others wrote, for the same device.
set -euo pipefail

# perftest PROGRAM SIZE COLUMNS ARGUMENTS: of the line of results for SIZE; nothing when it fails.
perftest() {
  local program=$1 size=$2 columns=$3 server
  shift 3
  set -- -d rxe0 -x 1 -F -s "$size" "$@"
  "$program" "$@" >/dev/null 2>&1 &
  server=$!
  for ((i = 0; i < 50; ++i)); do
    "$program" "$@" "$BATON_VM_ADDRESS" 2>/dev/null |
      awk -v size="$size" -v columns="$columns" '
        $1 == size { for (n = split(columns, wanted); i < n;) printf "%s ", $wanted[++i]; found = 1 }
        END { exit !found }' &&
      break
    sleep 0.1  # until the server listens
  done
  kill "$server" 2>/dev/null || true
  wait "$server" 2>/dev/null || true
}

reference=()
add() { [[ -z $2 ]] || reference+=(--reference "$1=$2"); }

# latency NAME PROGRAM SIZE: what perftest calls typical, and its tail; of a ping-pong half of it.
latency() {
  local typical p99 p999
  read -r typical p99 p999 < <(perftest "$2" "$3" '5 8 9' -n 2000) || true
  add "$1_us" "${typical:-}"
  add "$1_p99_us" "${p99:-}"
  add "$1_p99.9_us" "${p999:-}"
}

# bandwidth NAME PROGRAM SIZE COUNT: with 16 under way, as the suite has.
bandwidth() {
  local average million
  read -r average million < <(perftest "$2" "$3" '4 5' -n "$4" -t 16) || true
  add "$1_MiB_per_s" "${average:-}"
  add "$1_million_per_s" "${million:-}"
}

if [[ ${1##*/} == rdma_bench && -z ${BATON_BENCH_NO_PERFTEST:-} ]]; then
  latency ib_send_lat_64B_half ib_send_lat 64
  latency ib_write_lat_64B_half ib_write_lat 64
  latency ib_read_lat_64B ib_read_lat 64
  latency ib_atomic_lat_8B ib_atomic_lat 8
  bandwidth ib_send_bw_64B ib_send_bw 64 5000
  bandwidth ib_write_bw_4KiB ib_write_bw 4096 5000
  bandwidth ib_write_bw_64KiB ib_write_bw 65536 500
  bandwidth ib_write_bw_1MiB ib_write_bw 1048576 50
  bandwidth ib_read_bw_4KiB ib_read_bw 4096 2000
  bandwidth ib_read_bw_64KiB ib_read_bw 65536 500
  bandwidth ib_read_bw_1MiB ib_read_bw 1048576 50
fi
exec "$@" --address "$BATON_VM_ADDRESS" --output "$BATON_VM_RESULTS" "${reference[@]}"
