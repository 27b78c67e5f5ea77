#!/usr/bin/env bash
# pingd_wire_peer.sh [PINGS [PINGS_OF_EIGHT]]: the clients of pingd_wire.sh, with their pings each, or as
# many as there are until pingd has been disturbed, and some after it.
set -euo pipefail
# shellcheck source=tests/vm/pingd_common.sh
source "$(dirname "$0")/pingd_common.sh"
pings=${1:-300} pings_of_eight=${2:-100}

prefer_the_device
count_timers

exec 3>/dev/null
until { exec 3<>"/dev/tcp/10.0.0.1/$report_port"; } 2>/dev/null; do pause 0.5; done
# await WORD: what pingd's machine says.
await() {
  local word=''
  read -ru 3 word || true
  [[ $word == "$1" ]] || die "pingd's machine says \"$word\", not \"$1\""
}

found=1
for count in 1 8; do
  [[ $count -eq 1 ]] || pings=$pings_of_eight
  start_endless_clients 10.0.0.1 "$count"
  await disturbed
  ping_on "$pings"
  # Whose clients end in the middle of a ping, their end is none of the devices' faults.
  pause_clients
  statistics | sed 's/^/statistics: /' >&3
  await judged
  end_clients "$pings" >&3 || found=0
done
[[ $found -eq 0 ]] || echo "all found" >&3
