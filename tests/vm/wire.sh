#!/usr/bin/env bash
# RDMA crosses between two kernels: rping and perftest of Debian. The machine at 10.0.0.2, which
# runs this, too, has their servers.
set -euo pipefail
# shellcheck source=tests/vm/rxe_common.sh
source "$(dirname "$0")/rxe_common.sh"
count_timers

# The servers; then what this machine's device has counted up to the end of rping, for the other.
if [[ $BATON_VM_ADDRESS == 10.0.0.2 ]]; then
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
fi

# Until its server is there, it is asked again: rping's exit status says nothing.
count() { rping -c -a 10.0.0.2 -C 200 -v -V -S 1000 2>/dev/null | grep -c 'ping data'; }

until pings=$(count); do sleep 0.5; done
echo "rping: $pings of 200 pings came back"
[[ $pings -eq 200 ]]
statistics >/tmp/statistics

# perftest's client may crash where nobody listens yet, so the peer says when its server does, and is told how the
# client ended. What the devices count from here on is not judged: a failed attempt would count, too.
until [[ ${outcome:-} == 0 ]]; do
  until [[ $(busybox nc 10.0.0.2 7001 </dev/null) == ready ]]; do sleep 0.2; done
  outcome=0
  timeout 20 ib_send_lat -R -F -s 64 -n 200 10.0.0.2 >/tmp/latency 2>&1 || outcome=$?
  until echo "$outcome" | busybox nc 10.0.0.2 7002; do sleep 0.2; done
done
grep -A1 '#bytes' /tmp/latency

until theirs=$(busybox nc 10.0.0.2 7000 </dev/null) && [[ -n $theirs ]]; do sleep 0.5; done
echo "$theirs" >>/tmp/statistics
check_counters </tmp/statistics
