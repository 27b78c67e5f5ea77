#!/usr/bin/env bash
# The peers of lossy_wire.sh, which that script commands over TCP, one after the other.
set -euo pipefail
# shellcheck source=tests/vm/common.sh
source "$(dirname "$0")/common.sh"
# shellcheck source=tests/vm/lossy_common.sh
source "$(dirname "$0")/lossy_common.sh"

lose_packets
for port in 7471 7472; do
  before=$(packets_lost)
  exec 3>/dev/null
  until { exec 3<>"/dev/tcp/10.0.0.1/$report_port"; } 2>/dev/null; do pause 0.5; done
  status=0
  baton-peer --device rdma:rxe0 --connect "10.0.0.1:$port" --connections 4 --rate 200 --json \
    --until-stdin-closes --reply-timeout-ms 600000 --drain-timeout-ms 600000 <&3 >&3 || status=$?
  printf '%s\n' "status $status" "$(statistics)" "lost $(($(packets_lost) - before))" >&3
done
# The other machine's end is this one's.
pause 600
