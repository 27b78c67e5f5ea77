#!/usr/bin/env bash
# A wire that loses and reorders packets; to be sourced.
set -euo pipefail
# shellcheck source=tests/vm/rxe_common.sh
source "$(dirname "${BASH_SOURCE[0]}")/rxe_common.sh"
# shellcheck disable=SC2034  # of the scripts that are sourced into
report_port=7000

# lose_packets: from now on this machine loses one of 200 of the packets that it sends, and delivers the
# others after 0.5 to 1.5 ms each.
lose_packets() {
  count_timers
  modprobe sch_netem
  tc qdisc add dev eth0 root netem loss 0.5% delay 1ms 0.5ms
}
# packets_lost: so far.
packets_lost() { tc -s qdisc show dev eth0 | sed -n 's/.*(dropped \([0-9]*\),.*/\1/p'; }
