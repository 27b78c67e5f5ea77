#!/usr/bin/env bash
# native_services.sh TEST ARGUMENTS: what a native service can do, and what it and its workers show of themselves. Each
# test is a function, followed by what it alone calls.
set -euo pipefail
# shellcheck source=tests/vm/ledger_common.sh
source "$(dirname "$0")/ledger_common.sh"
# shellcheck source=tests/vm/native_common.sh
source "$(dirname "$0")/native_common.sh"

# connects DEATHS: a service connects to a peer that has nothing of Baton's, or on the soft device the device alone, and
# uses each connection for one message. Its owners kill themselves at random while they ask. Of all that was asked,
# whatever reached the peer is told to the service once, and used if it was accepted; nothing is told that nobody asked
# for. What the peer rejects, and what nobody hears, is told, too. Meanwhile another service connects to a peer that
# does not answer.
test_connects() {
  deaths=$1
  said='' wrong=''
  trap '[[ $? -eq 0 ]] || { echo "$said; wrong: $wrong" >&2 && tail -n 4 "$state.log" >&2 && dump; }' EXIT
  # A fraction of what is asked for: connections have to give back what they had.
  native_fields='queue_pairs_per_shard: 32'

  peer_program=connecting-peer unanswered='has not answered for 30000 ms'
  [[ $device != soft ]] || peer_program=connecting-soft-peer unanswered='no answer from .* within 10000 ms'

  begin silent 7804
  wait_for "asks" asked 20
  kill -STOP "$peer"
  silent=("$batond" "$peer_in") silent_peer=$peer
  # It takes some time of waiting, in which the controls and the deaths below happen.
  wait_for "4 connections that are not answered" has_told 4 "not established: .*$unanswered" &
  failing=$!

  # Controls: a connection that is not used, and an ask that is made twice.
  control forgets 7801 --forget 'service_established is'
  control repeats 7802 --repeat 'peer_repeated is 2, not 0'

  begin kv 7803 --lives 8
  patience=600 wait_for "$deaths deaths" has_died "$deaths"
  touch "$stop"
  wait_for "everything to be told and used" is_right
  say "$said"
  operator connection list kv -o json >"$work/connections"
  ! grep -q '"index"' "$work/connections" || die "connections are left: $(cat "$work/connections")"
  end_service
  result="$ends deaths among ${now[service_asks]} asks: ${now[peer_used]} connections used, \
${now[peer_rejected]} rejected, ${now[service_unheard]} that nobody heard, ${now[service_limited]} \
refused for the limit; 0 lost, 0 told twice"

  wait "$failing" || die "with a peer that does not answer: see above"
  kill -CONT "$silent_peer"
  state=$states/silent batond=${silent[0]} peer_in=${silent[1]}
  end_service
  echo "$result"
}

# begin NAME PORT [FLAGS]: a peer, and a service that connects to it. On the soft device PORT is a free one.
begin() {
  local peer_port=$2
  [[ $device != soft ]] || peer_port=0
  state=$states/$1 stop=$work/stop.$1 ends=0 ready=() owner_of=()
  mkfifo "$work/$1.in" "$work/$1.out"
  "$peer_program" "$address" "$peer_port" <"$work/$1.in" >"$work/$1.out" 2>"$work/$1.log" &
  peer=$!
  exec {peer_in}>"$work/$1.in" {peer_out}<"$work/$1.out"
  read -rt 60 -u "$peer_out" said || die "no peer"
  worker_flags=(--peer "$address" --port "${said#listening }" --stop-file "$stop" "${@:3}")
  start_native "$1" "$BATON_BIN/connecting-service.so" "max_connections: 64"
  wait_for "both shards to be served" are_served 2
}

# account: what the service and the peer say, in $said; and what is wrong with it, in $wrong.
account() {
  kill -0 "$peer" || die "the peer is gone"
  echo >&"$peer_in"
  read -rt 60 -u "$peer_out" said || die "the peer does not answer"
  said=$(sed 's/.*\] worker_output: workers: //' "$state.log" | cat - <(echo "peer 0 $said") | awk '
    /^(shard|peer) / { line[$1 $2] = $0 }
    END {
      for (key in line) {
        count = split(line[key], word)
        side = word[1] == "peer" ? "peer" : "service"
        for (i = 3; i < count; i += 2) total[side "_" word[i]] += word[i + 1]
        shards += side == "service"
      }
      for (key in total) print key "=" total[key]
      print "shards=" shards + 0
    }' | sort | tr '\n' ' ')
  declare -gA now=()
  local word
  for word in $said; do now[${word%=*}]=${word#*=}; done
  wrong=''
  must 'shards == 2' 'service_open == 0' 'service_refused == 0' 'service_twice == 0' \
    'service_wrong == 0' 'peer_withdrawn == 0' \
    'service_broken == 0' 'service_established == service_used' 'service_used == peer_used' \
    'service_rejected == peer_rejected' 'peer_accepted == peer_used' 'peer_unused == 0' \
    'peer_repeated == 0' 'peer_wrong == 0' 'peer_open == 0'
}
# must CONDITION...: of numbers in $now.
must() {
  local condition left right
  for condition in "$@"; do
    left=${condition%% *} right=${condition##* }
    [[ ${now[$left]:-none} == "${now[$right]:-$right}" ]] || wrong+="$left is ${now[$left]:-none}, not $right; "
  done
}
# shellcheck disable=SC2317  # wait_for calls it
is_right() { account && [[ -z $wrong ]]; }
# asked COUNT: so many asks have reached the peer.
# shellcheck disable=SC2317  # wait_for calls it
asked() { account && [[ ${now[peer_requests]} -ge $1 ]]; }
# shellcheck disable=SC2317  # wait_for calls it
has_died() { follow && [[ $ends -ge $1 ]]; }
# shellcheck disable=SC2317  # wait_for calls it
is_settled() { account && [[ ${now[shards]} == 2 && ${now[service_open]} == 0 ]]; }
end_service() {
  kill "$batond"
  wait "$batond" || die "batond did not end well: $(tail -n 3 "$state.log")"
  exec {peer_in}>&-
}
# control NAME PORT FLAGS WHAT...
control() {
  begin "$1" "$2" "$3" 9
  wait_for "asks" asked 40
  touch "$stop"
  wait_for "the last outcomes" is_settled
  pause 2
  account
  [[ $wrong == *"$4"* ]] || die "$1 was not found: $said; wrong: $wrong"
  say "$1: found: $wrong"
  end_service
}
# has_told COUNT PATTERN: so often.
# shellcheck disable=SC2317  # wait_for calls it
has_told() { [[ $(grep -cE "$2" "$state.log") -ge $1 ]]; }

# inspect: what `baton inspect` shows of a service under checked load: of its living driver, and of a file. Then the
# driver is killed: its connections and workers end, and the next one serves.
test_inspect() {
  start_native kv "$BATON_BIN/ledger-v1.so"
  wait_for "two workers" are_ready 2
  start_peer checked "$device" "$address" --connections 4 "${some_load[@]}"
  wait_for "both shards to be served" are_served 2
  looks '^Kind: +native' kv
  looks 'client [0-9]+, [0-9]+ requests, total' kv
  looks '^connection [0-9]+ +receive +[0-9]+ +posted +RECEIVE' kv
  looks '^Queue pairs: +[0-9]+ free, [1-9][0-9]* taken' kv --shard 0
  say "a native service under load"

  snapshot living
  say "a native service under load, also in a file of no one moment"

  follow
  former=("${pid_of[@]}")
  ready=() owner_of=() pid_of=()
  [[ $device != soft ]] || port=0
  kill_unfollowed "$(pgrep -P "$batond" -x baton-driver)"
  wait_for "the peer to be disconnected" has_ended checked
  soon are_gone "${former[@]}"
  wait_for "two new workers" are_ready 2
  start_peer anew "$device" "$address" --connections 4 "${some_load[@]}"
  looks '^Connections: +4 of 16' kv
  check_peer anew
  say "with its driver everything ended, and the next one serves"
}

# looks PATTERN ARGUMENTS...: at everything, of which nothing is invalid.
looks() {
  local pattern=$1
  shift
  baton --state-dir "$state" inspect "$@" --queues --work-requests --state --decoder \
    "$BATON_BIN/ledger-state" >"$work/arena" 2>&1 || die "inspect $*: $(cat "$work/arena")"
  grep -qE "$pattern" "$work/arena" || die "\"$pattern\" is not in what inspect $* shows: $(cat "$work/arena")"
  ! grep -q '^Invalid' "$work/arena" || die "inspect $*: $(cat "$work/arena")"
}
# snapshot WHAT: of it, as the file shows it.
snapshot() {
  baton --state-dir "$state" snapshot kv "$work/$1" >"$work/saved" 2>&1 || die "$(cat "$work/saved")"
  looks '^Kind: +native' --offline "$work/$1"
  looks 'client [0-9]+, [0-9]+ requests, total' --offline "$work/$1"
}

# privileges: what a native worker's process is given: all its descriptors, who it is, and the memory that it shares.
# supervisor/driver/native_workers.md has the list. And that one who is nobody can serve, which takes root.
test_privileges() {
  # Where others than root can read it.
  objects=$(mktemp -d)
  chmod 755 "$objects"
  cp "$BATON_BIN/confined_worker.so" "$BATON_BIN/ledger-v1.so" "$objects"

  # What differs, for two shards and the 16 workers that may be. Of the event descriptors 16 are the workers', one is
  # the driver's, and the device has one, or the NIC one for each shard. One socket is the session's, and news go
  # through a pipe; on the soft device others are its file on the NIC, what it calls that by, and the channels of two
  # completion queues.
  if [[ $device == soft ]]; then
    of_device='19 descriptor anon_inode:[eventfd]
5 descriptor socket
1 shares /memfd:baton-queues (deleted)'
    kept='socket:*' kept_by_workers=5
  else
    of_device='18 descriptor anon_inode:[eventfd]
2 descriptor anon_inode:[infinibandevent]
1 descriptor anon_inode:[timerfd]
1 descriptor /dev/infiniband/uverbs0
1 descriptor socket
1 shares /dev/infiniband/uverbs0
1 shares /dev/zero (deleted)'
    kept='/dev/infiniband/*' kept_by_workers=1
  fi

  # These workers run as the user that batond runs as. Its groups are theirs only where it cannot drop them. The third one
  # comes when the driver has connections of its own.
  native_fields='' start_native kv "$objects/confined_worker.so"
  wait_for "two workers' reports" have_told 2
  expect "the service" "NATIVE|kv" operator service list
  kill -KILL "$(teller 1)"
  wait_for "a third" have_told 3
  for number in 1 2 3; do
    mapfile -t own < <(sed -En '/^(Uid|Gid|Groups):/ { s/\t/ /g; s/ *$//; p }' /proc/self/status)
    [[ $EUID -ne 0 ]] || own[2]=Groups:
    expect_report "$number" "${own[@]}"
  done
  # Control: the driver itself has more than that.
  driver=$(pgrep -P "$batond" -x baton-driver)
  [[ $(find "/proc/$driver/fd" -lname "$kept" | wc -l) -gt $kept_by_workers ]] ||
    die "the driver has no more files of the device than its workers"
  kill "$batond"
  wait "$batond" || die "batond did not end well: $(tail -n 3 "$state.log")"

  if [[ $EUID -ne 0 ]]; then
    say "workers have what they should; root alone starts them as another user"
    exit 0
  fi
  # These workers run as a user that nobody else is.
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
  start_peer checked "$device" "$address" --connections 4 "${some_load[@]}"
  wait_for "both shards to be served" are_served 2
  for _ in 1 2; do kill_owner 0 KILL; done
  wait_for "two streams to control" have_streams
  check_peer checked
  say "$(tail -n 1 "$work/checked.out" | cut -d, -f 5-15)"
}

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
4 descriptor pipe
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
have_streams() { [[ $(operator worker list kv -o wide | grep -c ' open ') -eq 2 ]]; }

# demo: the demonstration with native workers, small. It loses nothing, shows every kind of event, and its JSON has what
# others read from it. Of bad versions, which are the same on every device, there is one.
test_demo() {
  json=$BATON_VM_RESULTS/demo.json
  demo --mode native --device rdma --json --address "$BATON_VM_ADDRESS" --output "$BATON_VM_RESULTS" \
    --connections 8 --shards 2 --rate 2000 --handoffs 1 --upgrades 1 --bad-upgrades 1 --crashes 1 \
    --hangs 1 --cold-crashes 1 --control-kills 1 --keeper-kills 1 --baton-upgrades 1 --batond-kills 1 --poisons 1 \
    --baseline-runs 1 >"$json" ||
    die "it failed: $(cat "$json")"
  cat "$json"

  has '{"ok":true,'
  has '"mode":"native","device":"rdma"'
  for defect in lost duplicated reordered corrupt wrong_total disconnects; do has "\"$defect\":0"; done
  for events in handoff=1 upgrade=1 bad_upgrade=1 crash_hot=1 hang=1 crash_cold=1 control_kill=1 \
    keeper_kill=1 baton_upgrade=1 batond_kill=1 poison=1; do
    has "\"${events%=*}\":{\"count\":${events#*=},\"ok\":${events#*=},"
  done
  has '"all_run":true'
  for event in drain crash; do has "\"$event\":{\"count\":1,\"ok\":1,"; done
}

has() { grep -qF "$1" "$json" || die "no $1"; }

case ${1:-} in
  connects) test_connects "${@:2}" ;;
  inspect) test_inspect "${@:2}" ;;
  privileges) test_privileges "${@:2}" ;;
  demo) test_demo "${@:2}" ;;
  *) die "no test \"${1:-}\"" ;;
esac
