#!/usr/bin/env bash
# lossy_wire.sh UPGRADES KILLS LOST [SEED]: a service, first with brokered and then with native workers, is upgraded and
# its owners are killed while the peers of another machine, which runs this, too, ask it over a wire that loses and
# reorders packets both ways: all is answered once and in order, and no connection ends. Goes on with each until this
# side alone has lost LOST packets.
set -euo pipefail
# shellcheck source=tests/vm/ledger_common.sh
source "$(dirname "$0")/ledger_common.sh"
# shellcheck source=tests/vm/native_common.sh
source "$(dirname "$0")/native_common.sh"
# shellcheck source=tests/vm/rxe_common.sh
source "$(dirname "$0")/rxe_common.sh"
report_port=7000

# lose_packets: from now on this machine loses one of 200 of the RoCE packets that it sends, and delivers
# the others after 0.5 to 1.5 ms each. The scripts talk to each other over TCP, which loses none.
lose_packets() {
  count_timers
  modprobe -a sch_netem sch_prio cls_u32
  tc qdisc add dev eth0 root handle 1: prio bands 4
  tc qdisc add dev eth0 parent 1:4 netem loss 0.5% delay 1ms 0.5ms
  tc filter add dev eth0 parent 1: protocol ip u32 match ip protocol 17 0xff \
    match ip dport 4791 0xffff flowid 1:4
}
# packets_lost: so far, all of RoCE.
packets_lost() { tc -s qdisc show dev eth0 | grep -A1 '^qdisc netem' | sed -n 's/.*(dropped \([0-9]*\),.*/\1/p'; }

# The peers of the other machine, which this one commands over TCP, one after the other.
if [[ $BATON_VM_ADDRESS == 10.0.0.2 ]]; then
  lose_packets
  for port in 7471 7472; do
    before=$(packets_lost)
    exec 3>/dev/null
    until { exec 3<>"/dev/tcp/10.0.0.1/$report_port"; } 2>/dev/null; do pause 0.5; done
    status=0
    baton-peer --device rdma:rxe0 --connect "10.0.0.1:$port" --connections 4 --rate 100 --json \
      --until-stdin-closes --reply-timeout-ms 600000 --drain-timeout-ms 600000 <&3 >&3 || status=$?
    printf '%s\n' "status $status" "$(statistics)" "lost $(($(packets_lost) - before))" >&3
  done
  # The other machine's end is this one's.
  pause 600
  exit
fi

upgrades=$1 kills=$2 lost=$3 seed=${4:-$RANDOM}
RANDOM=$seed
say "seed $seed"
random_addresses

# start_ledger VERSION: one that is not the keeper's child.
start_ledger() {
  "ledger-v$1" --socket "$state/kv.sock" --service kv --listen "$BATON_VM_ADDRESS:$port" \
    >>"$work/kv.log" 2>&1 &
}
start_brokered() {
  start_batond kv rxe0
  exec {log}<"$state.log"
  start_ledger 1
  start_ledger 1
}
# Kills the owner, as kill_owner of native_common.sh does. Nobody forks another worker here, so this starts one.
kill_brokered() {
  local owner
  follow
  owner=${owner_of[0]}
  kill -KILL "${pid_of[$owner]}" || die "worker $owner is gone"
  start_ledger "$version"
  soon went_on "$owner" 2
}
# upgrade SUFFIX: to the other version.
upgrade() {
  version=$((3 - version))
  operator upgrade kv --exec "$BATON_BIN/ledger-v$version$1" --watch-window 0.1 >"$work/upgrade" 2>&1 ||
    die "the upgrade: $(cat "$work/upgrade")"
  soon are_ready 2
}

# disturb MODE: in random order, at random moments.
disturb() {
  local event events=()
  mapfile -t events < <(for ((event = 0; event < upgrades; ++event)); do echo upgrade; done
    for ((event = 0; event < kills; ++event)); do echo kill; done)
  mapfile -t events < <(printf '%s\n' "${events[@]}" | shuf --random-source=<(yes "$RANDOM"))
  for event in "${events[@]}"; do
    pause "0.$((RANDOM % 10))"
    case $event-$1 in
      upgrade-brokered) upgrade '' ;;
      upgrade-native) upgrade .so ;;
      kill-brokered) kill_brokered ;;
      kill-native) kill_owner $((RANDOM % 2)) KILL ;;
    esac
  done
}

# The peer of the other machine connects to nc, and then listens to what comes from here.
start_far_peer() {
  mkfifo "$work/far.in"
  busybox nc -l -p "$report_port" <>"$work/far.in" >"$work/far.out" &
  peers[far]=$!
  wait_for "the peer to be connected" peer_has_said far '"connected"'
}
# check_far_peer: it has been served, and the devices of both have had to send again.
check_far_peer() {
  echo settle >"$work/far.in"
  wait_for "the peer to be answered" peer_has_said far '"settled"'
  ! log_has 'connection: .* ended' || die "a connection ended: $(grep 'connection: .* ended' "$state.log")"
  echo stop >"$work/far.in"
  wait_for "the peer's end" grep -q '^lost ' "$work/far.out"
  say "$(grep '"final"' "$work/far.out" | cut -d, -f 5-15)"
  grep -qx 'status 0' "$work/far.out" || die "the peer was not served as it should be: $(cat "$work/far.out")"
  [[ $(sed -n 's/^lost //p' "$work/far.out") -gt 0 ]] || die "the other machine has lost nothing"
  { statistics && grep '^link rxe0/1 ' "$work/far.out"; } >"$work/statistics"
  read_counters <"$work/statistics"
  say "sent again: completer_retry_err ${count[completer_retry_err]}, rcvd_seq_err ${count[rcvd_seq_err]}"
  [[ $((count[completer_retry_err] + count[rcvd_seq_err])) -gt ${again:-0} ]] || die "nothing was sent again"
  again=$((count[completer_retry_err] + count[rcvd_seq_err]))
  # nc may wait for more to send.
  kill "${peers[far]}" 2>/dev/null || true
  rm "$work/far.in"
}

lose_packets
for mode in brokered native; do
  version=1 state=/run/$mode
  pid_of=() object_of=() owner_of=() ready=() before=$(packets_lost)
  if [[ $mode == brokered ]]; then
    start_brokered
  else
    exec {log}<&-
    port=$((port + 1))
    start_native kv "$BATON_BIN/ledger-v1.so" 'shards: 2'
  fi
  wait_for "two workers" are_ready 2
  start_far_peer
  wait_for "the shards to be served" are_served "$([[ $mode == brokered ]] && echo 1 || echo 2)"
  disturb "$mode"
  # shellcheck disable=SC2317  # wait_for calls it
  have_been_lost() { [[ $(($(packets_lost) - before)) -ge $lost ]]; }
  wait_for "$lost packets to be lost" have_been_lost
  check_far_peer
  blackouts
  say "$mode: $upgrades upgrades, $kills kills, $(($(packets_lost) - before)) packets lost on this side"
done
