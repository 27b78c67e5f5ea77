#!/usr/bin/env bash
# What a native worker's process is given: all its descriptors, who it is, and the memory that it
# shares. supervisor/driver/native_workers.md has the list. And that one who is nobody can serve, which takes root.
set -euo pipefail
# shellcheck source=tests/vm/ledger_common.sh
source "$(dirname "$0")/ledger_common.sh"
# shellcheck source=tests/vm/native_common.sh
source "$(dirname "$0")/native_common.sh"

# Where others than root can read it.
objects=$(mktemp -d)
chmod 755 "$objects"
cp "$BATON_BIN/confined_worker.so" "$BATON_BIN/ledger-v1.so" "$objects"

# have_told COUNT: workers, in the lines of theirs in the log. Tabs are spaces there.
have_told() { [[ $(grep -c ' told$' "$state.log") -ge $1 ]]; }
# teller NUMBER: the pid of the NUMBERth.
teller() { grep ' told$' "$state.log" | sed -n "$1s/.*: \([0-9]*\) told\$/\1/p"; }
# report NUMBER: what the NUMBERth of them has told, in one order.
report() {
  local pid
  pid=$(teller "$1")
  sed -n "s/.*\] worker_output: workers: $pid //p" "$state.log" | sed 's/:\[[0-9]*\]$//; s/ *$//' | sort | uniq -c |
    sed 's/^ *//'
}
# What differs, for two shards and the 16 workers that may be. Of the event descriptors 16 are the workers', one is
# the keeper's, and the device has one, or the NIC one for each shard. Two sockets are the session's and for news; on the
# soft device others are its file on the NIC, what it calls that by, and the channels of two completion queues.
if [[ $device == soft ]]; then
  of_device='19 descriptor anon_inode:[eventfd]
6 descriptor socket
1 shares /memfd:baton-queues (deleted)'
  kept='socket:*' kept_by_workers=6
else
  of_device='18 descriptor anon_inode:[eventfd]
2 descriptor anon_inode:[infinibandevent]
1 descriptor anon_inode:[timerfd]
1 descriptor /dev/infiniband/uverbs0
2 descriptor socket
1 shares /dev/infiniband/uverbs0
1 shares /dev/zero (deleted)'
  kept='/dev/infiniband/*' kept_by_workers=2
fi
# expect_report NUMBER IDENTITY...: the whole of it.
expect_report() {
  local number=$1
  shift
  {
    cat <<END
1 CapAmb: 0000000000000000
1 CapEff: 0000000000000000
1 CapInh: 0000000000000000
1 CapPrm: 0000000000000000
1 NoNewPrivs: 1
2 descriptor anon_inode:[eventpoll]
1 descriptor /dev/null
1 descriptor $state/kv.workers.lock
3 descriptor pipe
1 shares /memfd:baton-buffers-kv (deleted)
1 shares /memfd:baton-driver-log-kv (deleted)
1 shares /memfd:baton-recovery-kv (deleted)
1 shares /memfd:baton-worker-log-kv (deleted)
1 told
END
    echo "$of_device"
    printf '1 %s\n' "$@"
  } | sort >"$work/wanted"
  report "$number" | sed -E 's/(memfd:[a-z-]+)\.[0-9]+/\1/' | sort | diff "$work/wanted" - ||
    die "what worker $number was given (>) is not what it should be (<)"
}

# As who batond is. The third comes when the keeper has connections of its own.
native_fields='' start_native kv "$objects/confined_worker.so"
wait_for "two workers' reports" have_told 2
expect "the service" "NATIVE|kv" operator service list
kill -KILL "$(teller 1)"
wait_for "a third" have_told 3
for number in 1 2 3; do
  mapfile -t own < <(sed -En '/^(Uid|Gid|Groups):/ { s/\t/ /g; s/ *$//; p }' /proc/self/status)
  expect_report "$number" "${own[@]}"
done
# Control: the keeper itself has more than that.
keeper=$(pgrep -P "$batond" -x baton-driver)
[[ $(find "/proc/$keeper/fd" -lname "$kept" | wc -l) -gt $kept_by_workers ]] ||
  die "the keeper has no more files of the device than its workers"
kill "$batond"
wait "$batond" || die "batond did not end well: $(tail -n 3 "$state.log")"

if [[ $EUID -ne 0 ]]; then
  say "workers have what they should; root alone starts them as another user"
  exit 0
fi
# As nobody in particular.
identity='uid: 4321 gid: 1234'
native_fields=$identity start_native kv "$objects/confined_worker.so"
wait_for "two workers' reports" have_told 2
for number in 1 2; do
  expect_report "$number" 'Uid: 4321 4321 4321 4321' 'Gid: 1234 1234 1234 1234' 'Groups:'
done
if [[ $device == soft ]]; then
  nic=$(pgrep -P "$(pgrep -P "$batond" -x baton-driver)" -x baton-nic)
  grep -qP '^Uid:\t4321\t4321\t4321' "/proc/$nic/status" || die "the NIC is not its service's user"
fi
kill "$batond"
wait "$batond" || die "batond did not end well: $(tail -n 3 "$state.log")"
say "workers have what they should"

# Such workers serve, take over from each other, and reach control.
native_fields=$identity start_native kv "$objects/ledger-v1.so"
wait_for "two workers" are_ready 2
start_peer checked "$device" "$address" --connections 4
wait_for "both shards to be served" are_served 2
for _ in 1 2; do kill_owner 0 KILL; done
have_streams() { [[ $(operator worker list kv -o wide | grep -c ' open ') -eq 2 ]]; }
wait_for "two streams to control" have_streams
check_peer checked
say "$(tail -n 1 "$work/checked.out" | cut -d, -f 5-15)"
