#!/usr/bin/env bash
# The servers that wire.sh asks.
set -euo pipefail
rping -s -a "$BATON_VM_ADDRESS" -C 200 -v -S 1000 >/dev/null
until timeout 20 ib_send_lat -R -F -s 64 -n 200; do :; done
