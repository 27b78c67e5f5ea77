#!/usr/bin/env bash
# demo.sh DEMO [ARGUMENTS]: the demonstration, in the virtual machine.
set -euo pipefail
exec "$@" --address "$BATON_VM_ADDRESS" --output "$BATON_VM_RESULTS"
