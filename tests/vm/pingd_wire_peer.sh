#!/usr/bin/env bash
# pingd_wire_peer.sh [PINGS [PINGS_OF_EIGHT]]: the clients of pingd_wire.sh.
set -euo pipefail
# shellcheck source=tests/vm/pingd_common.sh
source "$(dirname "$0")/pingd_common.sh"
pings=${1:-900} pings_of_eight=${2:-600}

prefer_the_device
count_timers

exec 3>/dev/null
until { exec 3<>"/dev/tcp/10.0.0.1/$report_port"; } 2>/dev/null; do pause 0.5; done
found=1
for count in 1 8; do
  [[ $count -eq 1 ]] || pings=$pings_of_eight
  start_clients 10.0.0.1 "$count" "$pings"
  check_clients "$pings" >&3 || found=0
done
statistics | sed 's/^/statistics: /' >&3
[[ $found -eq 0 ]] || echo "all found" >&3
