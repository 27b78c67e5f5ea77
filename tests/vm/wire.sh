#!/usr/bin/env bash
# RDMA crosses between two kernels: rping and perftest of Debian, with the peer's servers.
set -euo pipefail
# shellcheck source=tests/vm/rxe_common.sh
source "$(dirname "$0")/rxe_common.sh"
count_timers

# Until its server is there, it is asked again: rping's exit status says nothing.
count() { rping -c -a 10.0.0.2 -C 200 -v -V -S 1000 2>/dev/null | grep -c 'ping data'; }

until pings=$(count); do sleep 0.5; done
echo "rping: $pings of 200 pings came back"
[[ $pings -eq 200 ]]
statistics >/tmp/statistics

# perftest's client may crash where nobody listens yet, so wire_peer.sh says when its server does, and is told how the
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
