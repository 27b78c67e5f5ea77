#!/usr/bin/env bash
# pingd.sh TEST ARGUMENTS: Debian's rping and rdma_client against pingd, while it is upgraded and killed; every ping
# comes back once. Each test is a function, followed by what it alone calls. In the peer's machine, at 10.0.0.2, this is
# wire_peer with its arguments.
set -euo pipefail
# shellcheck source=tests/vm/pingd_common.sh
source "$(dirname "$0")/pingd_common.sh"
# shellcheck source=tests/vm/native_common.sh
source "$(dirname "$0")/native_common.sh"

# brokered PINGS PINGS_OF_EIGHT UPGRADES KILLS TEST_HOOKS_PINGD: one client, then eight with their pings each, or as
# many as there are until the last kill, and some after it. PINGS_OF_EIGHT is 0: not the eight. Then rdma_client.
test_brokered() {
  pings=$1 pings_of_eight=$2 upgrades=$3 kills=$4 faulty=$5
  counts=(1)
  [[ $pings_of_eight -eq 0 ]] || counts+=(8)

  test_checkers
  prefer_the_device
  count_timers
  start_batond "$state"
  start_pingd pingd-v1 "$state" "$BATON_VM_ADDRESS:$port"
  start_pingd pingd-v1 "$state" "$BATON_VM_ADDRESS:$port"

  for count in "${counts[@]}"; do
    started=$SECONDS
    [[ $count -eq 1 ]] || pings=$pings_of_eight
    start_endless_clients "$BATON_VM_ADDRESS" "$count"
    wait_for "$count connections" is_connected "$count"
    disturb "$upgrades" "$kills"
    ping_on "$pings"
    # Whose clients end in the middle of a ping, their end is none of the device's faults.
    pause_clients
    statistics | check_counters || die "the device lost something, or was not ready"
    end_clients "$pings" || die "of $count clients, not all had their pings"
    say "$count clients: $((SECONDS - started)) s"
  done

  # One that ends by itself.
  start_clients "$BATON_VM_ADDRESS" 1 5
  check_clients 5 || die "the client that ends had not its pings"

  # rdma_client: four, one after the other, the owner killed before every second.
  other=/run/other
  start_batond "$other"
  start_pingd pingd-v1 "$other" "$BATON_VM_ADDRESS:7471" --protocol rdma_client
  for ((i = 0; i < 4; ++i)); do
    if ((i % 2)); then
      former=$pingd
      start_pingd pingd-v2 "$other" "$BATON_VM_ADDRESS:7471" --protocol rdma_client
      kill -KILL "$former"
    fi
    rdma_client -s "$BATON_VM_ADDRESS" -p 7471 >"$work/rdma_client" 2>&1 || true
    grep -qx 'rdma_client: end 0' "$work/rdma_client" || die "rdma_client: $(cat "$work/rdma_client")"
  done
  say "4 rdma_clients"

  # A pingd that leaves one WRITE out is found.
  bad=/run/bad port=7175
  start_batond "$bad"
  start_pingd "$faulty" "$bad" "$BATON_VM_ADDRESS:$port" --fault lose-write --fault-at 6
  start_clients "$BATON_VM_ADDRESS" 1 5
  ! check_clients 5 || die "a lost WRITE was not found"
  grep -q 'data mismatch' "$work/client.0.err" || die "it was not the WRITE that was found"
}

# native PINGS PINGS_OF_EIGHT UPGRADES KILLS [SEED]: the same with native workers, but rdma_client, in random order at
# random moments. PINGS is 0: not the one client. On the soft device the client is one that speaks like rping
# (tests/worker/examples/pingd).
test_native() {
  pings=$1 pings_of_eight=$2 upgrades=$3 kills=$4 seed=${5:-$RANDOM}
  counts=(1 8)
  [[ $pings -ne 0 ]] || counts=(8)
  RANDOM=$seed
  say "seed $seed"

  # Less than the machine's time, so that what all have said is shown.
  # shellcheck disable=SC2034  # of wait_for
  patience=120
  trap '[[ $? -eq 0 ]] || tail -n 60 "$state.log" >&2' EXIT
  version=1

  test_checkers
  begin_judgement
  start_native "$service" "$BATON_BIN/pingd-v1.so"
  wait_for "two workers" are_ready 2

  for count in "${counts[@]}"; do
    started=$SECONDS
    [[ $count -eq 1 ]] || pings=$pings_of_eight
    start_endless_clients "$address" "$count"
    wait_for "$count connections" is_connected "$count"
    disturb_native "$upgrades" "$kills"
    say "$count clients, $upgrades upgrades, $kills kills: $((SECONDS - started)) s"
    ping_on "$pings"
    # Whose clients end in the middle of a ping, their end is none of the device's faults.
    pause_clients
    end_judgement
    end_clients "$pings" || die "of $count clients, not all had their pings"
    say "$count clients: $((SECONDS - started)) s"
  done

  # One that ends by itself.
  start_clients "$address" 1 5
  check_clients 5 || die "the client that ends had not its pings"
  blackouts
}

# disturb_native UPGRADES KILLS: two workers are ready before each: the owner and its heir.
disturb_native() {
  local event events=() i shards
  for ((i = 0; i < $1; ++i)); do events+=(upgrade); done
  for ((i = 0; i < $2; ++i)); do events+=(kill); done
  mapfile -t events < <(printf '%s\n' "${events[@]}" | shuf --random-source=<(yes "$RANDOM"))
  for event in "${events[@]}"; do
    pause "0.$((RANDOM % 10))"
    if [[ $event == upgrade ]]; then
      version=$((3 - version))
      upgrade_to "$service" "pingd-v$version.so"
    else
      follow
      shards=("${!owner_of[@]}")
      kill_owner "${shards[RANDOM % ${#shards[@]}]}" KILL
    fi
  done
}

# wire UPGRADES KILLS: the rpings of another machine, which is wire_peer, ping over the wire: one, then eight.
test_wire() {
  upgrades=$1 kills=$2

  test_checkers
  prefer_the_device
  count_timers
  start_batond "$state"
  start_pingd pingd-v1 "$state" "$BATON_VM_ADDRESS:$port"
  start_pingd pingd-v1 "$state" "$BATON_VM_ADDRESS:$port"
  # The peer connects when it may begin.
  coproc nc { exec busybox nc -l -p "$report_port"; }
  # shellcheck disable=SC2154  # of coproc, which takes them back when it ends
  exec {from_peer}<&"${nc[0]}" {to_peer}>&"${nc[1]}"

  for count in 1 8; do
    wait_for "$count connections" is_connected "$count"
    disturb "$upgrades" "$kills"
    echo "disturbed" >&"$to_peer"
    until read -ru "$from_peer" line || die "the peer has gone"; [[ $line == "statistics: "* ]]; do
      echo "$line"
    done
    { statistics && echo "${line#statistics: }"; } >"$work/statistics"
    [[ $(grep -c '^link rxe0/1 ' "$work/statistics") -eq 2 ]] || die "the peer has no statistics"
    check_counters <"$work/statistics" || die "the devices lost something, or were not ready"
    echo "judged" >&"$to_peer"
  done
  line=''
  while read -ru "$from_peer" line; do
    echo "$line"
    [[ $line != "all found" ]] || exit 0
  done
  die "the peer has not found all"
}

# wire_peer [PINGS [PINGS_OF_EIGHT]]: the clients of wire, with their pings each, or as many as there are until pingd
# has been disturbed, and some after it.
wire_peer() {
  pings=${1:-300} pings_of_eight=${2:-100}

  prefer_the_device
  count_timers

  exec 3>/dev/null
  until { exec 3<>"/dev/tcp/10.0.0.1/$report_port"; } 2>/dev/null; do pause 0.5; done

  found=1
  for count in 1 8; do
    [[ $count -eq 1 ]] || pings=$pings_of_eight
    start_endless_clients 10.0.0.1 "$count"
    await disturbed
    ping_on "$pings"
    # Whose clients end in the middle of a ping, their end is none of the devices' faults.
    pause_clients
    statistics | sed 's/^/statistics: /' >&3
    await judged
    end_clients "$pings" >&3 || found=0
  done
  [[ $found -eq 0 ]] || echo "all found" >&3
}

# await WORD: what pingd's machine says.
await() {
  local word=''
  read -ru 3 word || true
  [[ $word == "$1" ]] || die "pingd's machine says \"$word\", not \"$1\""
}

# alone PINGS: the control: rping against its own server, beside programs that start and end. What the device counts
# here is not of Baton's making.
test_alone() {
  prefer_the_device
  count_timers
  rping -s -a "$BATON_VM_ADDRESS" -p "$port" -P -S 1000 >/dev/null 2>"$work/server.err" &
  wait_for "the server" is_listening
  while true; do
    head -c 30000000 /dev/zero | sha256sum >/dev/null
    pause 0.5
  done &
  start_clients "$BATON_VM_ADDRESS" 1 "$1"
  check_clients "$1" || die "the server: $(cat "$work/server.err")"
  statistics | check_counters || die "the device lost something, or was not ready"
}

is_listening() { rdma resource show cm_id | grep LISTEN >/dev/null; }

if [[ ${BATON_VM_ADDRESS:-} == 10.0.0.2 ]]; then
  wire_peer "$@"
  exit
fi
case ${1:-} in
  brokered) test_brokered "${@:2}" ;;
  native) test_native "${@:2}" ;;
  wire) test_wire "${@:2}" ;;
  alone) test_alone "${@:2}" ;;
  *) die "no test \"${1:-}\"" ;;
esac
