#!/usr/bin/env bash
# A wire that loses and reorders packets; to be sourced.
set -euo pipefail
# shellcheck source=tests/vm/rxe_common.sh
source "$(dirname "${BASH_SOURCE[0]}")/rxe_common.sh"
# shellcheck disable=SC2034  # of the scripts that are sourced into
report_port=7000

# lose_packets: from now on this machine loses one of 200 of the RoCE packets that it sends, and delivers
# the others after 0.5 to 1.5 ms each. The scripts talk to each other over TCP, which loses none.
lose_packets() {
  count_timers
  modprobe -a sch_netem sch_prio cls_u32
  tc qdisc add dev eth0 root handle 1: prio bands 4
  tc qdisc add dev eth0 parent 1:4 netem loss 0.5% delay 1ms 0.5ms
  tc filter add dev eth0 parent 1: protocol ip u32 match ip protocol 17 0xff \
    match ip dport 4791 0xffff flowid 1:4
}
# packets_lost: so far, all of RoCE.
packets_lost() { tc -s qdisc show dev eth0 | grep -A1 '^qdisc netem' | sed -n 's/.*(dropped \([0-9]*\),.*/\1/p'; }
