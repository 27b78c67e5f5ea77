#!/usr/bin/env bash
# rping_alone.sh PINGS: the control of pingd.sh: Debian's rping against its own server, beside programs
# that start and end. What the device counts here is not of Baton's making.
set -euo pipefail
# shellcheck source=tests/vm/pingd_common.sh
source "$(dirname "$0")/pingd_common.sh"

prefer_the_device
count_timers
rping -s -a "$BATON_VM_ADDRESS" -p "$port" -P -S 1000 >/dev/null 2>"$work/server.err" &
is_listening() { rdma resource show cm_id | grep LISTEN >/dev/null; }
wait_for "the server" is_listening
while true; do
  head -c 30000000 /dev/zero | sha256sum >/dev/null
  pause 0.5
done &
start_clients "$BATON_VM_ADDRESS" 1 "$1"
check_clients "$1" || die "the server: $(cat "$work/server.err")"
statistics | check_counters || die "the device lost something, or was not ready"
