#!/usr/bin/env bash
# The servers that wire.sh asks; then what this machine's device has counted up to the end of rping, for it.
set -euo pipefail
# shellcheck source=tests/vm/rxe_common.sh
source "$(dirname "$0")/rxe_common.sh"
count_timers
rping -s -a "$BATON_VM_ADDRESS" -C 200 -v -S 1000 >/dev/null
statistics >/tmp/statistics
until timeout 20 ib_send_lat -R -F -s 64 -n 200; do :; done
while :; do busybox nc -l -p 7000 </tmp/statistics || true; done
