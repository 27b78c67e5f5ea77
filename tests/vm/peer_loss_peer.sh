#!/usr/bin/env bash
# The peers of peer_loss.sh, until it pulls this machine's plug.
set -euo pipefail

# Until the service is there.
attempt() {
  baton-peer --device rdma:rxe0 --connect 10.0.0.1:7471 --connections 4 --window 8 --duration 3600 \
    --reply-timeout-ms 3600000 &>/dev/null || true
}
while :; do
  attempt
  sleep 0.5
done &
busybox nc -l -p 7000 </dev/null
echo b >/proc/sysrq-trigger
