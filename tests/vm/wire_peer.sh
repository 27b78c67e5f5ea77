#!/usr/bin/env bash
# The servers that wire.sh asks; then what this machine's device has counted up to the end of rping, for it.
set -euo pipefail
# shellcheck source=tests/vm/rxe_common.sh
source "$(dirname "$0")/rxe_common.sh"
count_timers
rping -s -a "$BATON_VM_ADDRESS" -C 200 -v -S 1000 >/dev/null
statistics >/tmp/statistics

# Each client gets a server of its own, which listens before the client hears of it. A server whose client has failed
# still waits for that client and would answer the next one wrongly.
until [[ ${outcome:-} == 0 ]]; do
  ib_send_lat -R -F -s 64 -n 200 >/dev/null 2>&1 &
  until rdma resource show cm_id | grep LISTEN >/dev/null; do sleep 0.1; done
  echo ready | busybox nc -l -p 7001
  outcome=$(busybox nc -l -p 7002 </dev/null)
  kill %% 2>/dev/null || true
  wait %% || true
done
while :; do busybox nc -l -p 7000 </tmp/statistics || true; done
