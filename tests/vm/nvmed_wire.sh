#!/usr/bin/env bash
# nvmed_wire.sh MODE BACKING UPGRADES KILLS [SEED]: nvmed, upgraded and killed, while the NVMe host of another
# machine (nvmed_wire_peer.sh) writes to it over the wire and reads what it has written.
set -euo pipefail
# shellcheck source=tests/vm/nvmed_common.sh
source "$(dirname "$0")/nvmed_common.sh"
upgrades=$3 kills=$4 seed=${5:-$RANDOM}
RANDOM=$seed
say "seed $seed"

prefer_the_device
count_timers
load_nvme
mark_kernel_log
start_nvmed "$1" "$2"
# The peer connects when it may begin.
coproc nc { exec busybox nc -l -p "$report_port"; }
# shellcheck disable=SC2154  # of coproc, which takes them back when it ends
exec {from_peer}<&"${nc[0]}" {to_peer}>&"${nc[1]}"

# await PREFIX: the peer's next line that begins so, in $line; those before it are shown.
await() {
  until read -ru "$from_peer" line || die "the peer has gone"; [[ $line == "$1"* ]]; do echo "$line"; done
}
await writing
disturb_nvmed "$upgrades" "$kills"
echo "disturbed" >&"$to_peer"
await "statistics: "
{ statistics && echo "${line#statistics: }"; } >"$work/statistics"
[[ $(grep -c '^link rxe0/1 ' "$work/statistics") -eq 2 ]] || die "the peer has no statistics"
check_counters <"$work/statistics" || die "the devices lost something, or were not ready"
await "all found"
kernel_log | check_kernel_log || die "the kernel's log tells of trouble"
blackouts
