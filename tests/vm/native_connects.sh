#!/usr/bin/env bash
# native_connects.sh DEATHS: a native service connects to a peer that has nothing of Baton's, or on the soft device the
# device alone, and uses each connection for one message. Its owners kill themselves at random while they ask. Of all that was
# asked, whatever reached the peer is told to the service once, and used if it was accepted; nothing
# is told that nobody asked for. What the peer rejects, and what nobody hears, is told, too.
# Meanwhile another service connects to a peer that does not answer.
set -euo pipefail
# shellcheck source=tests/vm/ledger_common.sh
source "$(dirname "$0")/ledger_common.sh"
# shellcheck source=tests/vm/native_common.sh
source "$(dirname "$0")/native_common.sh"
deaths=$1
said='' wrong=''
trap '[[ $? -eq 0 ]] || { echo "$said; wrong: $wrong" >&2 && tail -n 4 "$state.log" >&2 && dump; }' EXIT
# A fraction of what is asked for: connections have to give back what they had.
native_fields='queue_pairs_per_shard: 32'

peer_program=connecting-peer unanswered='has not answered for 30000 ms'
[[ $device != soft ]] || peer_program=connecting-soft-peer unanswered='no answer from .* within 10000 ms'
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

# Controls: a connection that is not used, and an ask that is made twice.
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
control forgets 7801 --forget 'service_established is'
control repeats 7802 --repeat 'peer_repeated is 2, not 0'

# has_told COUNT PATTERN: so often.
# shellcheck disable=SC2317  # wait_for calls it
has_told() { [[ $(grep -cE "$2" "$state.log") -ge $1 ]]; }
begin silent 7804
wait_for "asks" asked 20
kill -STOP "$peer"
silent=("$batond" "$peer_in") silent_peer=$peer
# It takes some time of waiting, in which the deaths below happen.
wait_for "4 connections that are not answered" has_told 4 "not established: .*$unanswered" &
failing=$!

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
