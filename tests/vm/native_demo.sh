#!/usr/bin/env bash
# native_demo.sh: the demonstration with native workers, small. It loses nothing, shows every kind of
# event, and its JSON has what others read from it.
set -euo pipefail
# shellcheck source=tests/vm/common.sh
source "$(dirname "$0")/common.sh"

json=$BATON_VM_RESULTS/demo.json
demo --mode native --device rdma --json --address "$BATON_VM_ADDRESS" --output "$BATON_VM_RESULTS" \
  --connections 8 --shards 2 --rate 2000 --handoffs 2 --upgrades 2 --bad-upgrades 3 --crashes 3 \
  --hangs 1 --cold-crashes 1 --control-kills 1 --batond-kills 1 --poisons 1 \
  --baseline-runs 1 >"$json" ||
  die "it failed: $(cat "$json")"
cat "$json"

has() { grep -qF "$1" "$json" || die "no $1"; }
has '{"ok":true,'
has '"mode":"native","device":"rdma"'
for defect in lost duplicated reordered corrupt wrong_total disconnects; do has "\"$defect\":0"; done
for events in handoff=2 upgrade=2 bad_upgrade=3 crash_hot=3 hang=1 crash_cold=1 control_kill=1 \
  batond_kill=1 poison=1; do
  has "\"${events%=*}\":{\"count\":${events#*=},\"ok\":${events#*=},"
done
has '"all_run":true'
for event in drain crash; do has "\"$event\":{\"count\":1,\"ok\":1,"; done
