#!/usr/bin/env bash
# batond as an ordinary user of group rdma, where that group has the device as the udev rule of deploy/udev
# leaves it (doctor.sh has the rule itself): a service on rxe0 is up, a peer is served by a worker that is
# not even in the group, and goes on through an upgrade. The buffers are on huge pages that root provides. Without the
# group there is no service.
set -euo pipefail
# shellcheck source=tests/vm/ledger_common.sh
source "$(dirname "${BASH_SOURCE[0]}")/ledger_common.sh"

user=4711
outsider() { setpriv --reuid "$user" --regid "$user" --clear-groups "$@"; }
is_user() { [[ $(awk '$1 == "Uid:" { print $2, $3, $4, $5 }' "/proc/$1/status") == "$user $user $user $user" ]]; }
member() { setpriv --reuid "$user" --regid "$user" --groups rdma "$@"; }

for node in uverbs0 rdma_cm; do
  chgrp rdma "/dev/infiniband/$node"
  chmod 0660 "/dev/infiniband/$node"
done
# Where everybody may run them.
chmod 755 "$work"
mkdir "$work/bin"
for program in batond baton-driver libbaton-driver.so baton-keeper baton-control baton-launch ledger-v1 ledger-v2 baton-peer; do
  cp "$BATON_BIN/$program" "$work/bin"
done
install -d -o "$user" -g "$user" -m 700 "$work/home"
state=$work/home/baton
{
  echo "state_dir: \"$state\""
  service_config ledger rxe0 | sed 's/ }$/ huge_pages: HUGE_PAGES_2_MIB }/'
} >"$work/config"
start=("$work/bin/batond" --start-timeout 300 --config "$work/config")

echo 16 >/proc/sys/vm/nr_hugepages  # the buffers take 8

if outsider "${start[@]}" --strict >"$work/outsider.log" 2>&1; then die "started without the group"; fi
grep -q 'device rxe0 cannot be opened' "$work/outsider.log" || die "$(cat "$work/outsider.log")"
say "without the group: $(grep -m1 -o 'device rxe0 cannot be opened.*' "$work/outsider.log")"

exec {batond}< <(member "${start[@]}" 2>"$state.log")
read -rt 120 line <&"$batond" || true
[[ ${line:-} == "batond ready"* ]] || die "batond: $(cat "$state.log")"
pid=$(pgrep -x baton-keeper)
is_user "$pid" || die "the keeper is somebody else"
grep -qE '^CapEff:[[:space:]]*0+$' "/proc/$pid/status" || die "the keeper has capabilities"
grep -q 'the buffers are on huge pages of 2 MiB' "$state.log" || die "huge pages: $(grep huge "$state.log")"
say "up, as uid $user without capabilities"

cd "$work/home"  # the upgrade's program is started where the worker was
outsider "$work/bin/ledger-v1" --socket "$state/ledger.sock" --listen "$BATON_VM_ADDRESS:$port" \
  >"$work/ledger.log" 2>&1 &
wait_for "a worker" grep -q 'ledger ready' "$work/ledger.log"
start_peer one rdma:rxe0 "$BATON_VM_ADDRESS" --connections 4 --rate 50
operator upgrade ledger --exec "$work/bin/ledger-v2" --watch-window 1 >"$work/upgrade.out" 2>&1 ||
  die "no upgrade: $(cat "$work/upgrade.out")"
pid=$(pgrep -x ledger-v2)
is_user "$pid" || die "ledger-v2 is somebody else"
check_peer one
say "a peer was served, and went on through an upgrade"
