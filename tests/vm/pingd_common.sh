#!/usr/bin/env bash
# What the tests of pingd have in common; to be sourced. `rping` and `rdma_client` are Debian's.
set -euo pipefail

service=pingd
port=7174
# The bytes of each ping. Scripts set their own.
ping_bytes=1000
# shellcheck disable=SC2034  # of the scripts that are sourced into
report_port=7000
state=/run/baton
# shellcheck source=tests/vm/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
# shellcheck source=tests/vm/rxe_common.sh
source "$(dirname "${BASH_SOURCE[0]}")/rxe_common.sh"

# check_pings COUNT [or-more] <OUTPUT: the output of `rping -c -v -V` is COUNT pings, each once, in
# order; what it says of itself, by its exit status, is nothing.
check_pings() {
  awk -v wanted="$1" -v more="${2:-}" '
    index($0, "ping data: rdma-ping-" (found + 0) ": ") == 1 { ++found; next }
    { print "line " NR " is \"" substr($0, 1, 60) "\", not ping " found + 0; failed = 1; exit }
    END {
      if (!failed) print found + 0 " of " wanted " pings"
      exit failed || (more ? found < wanted : found != wanted)
    }'
}

# The checkers find what they are for.
test_checkers() {
  local bad
  pings() { for number in "$@"; do echo "ping data: rdma-ping-$number: ABCDEF"; done; }
  pings 0 1 2 3 | check_pings 4 >/dev/null || die "the checker refuses what is right"
  for bad in '0 1 3 4' '0 1 1 2' '0 2 1 3' '0 1 2' '0 1 2 3 4' ''; do
    # shellcheck disable=SC2086  # words
    ! pings $bad | check_pings 4 >/dev/null || die "the checker of pings does not see \"$bad\""
  done
  pings 0 1 2 3 | check_pings 3 or-more >/dev/null || die "the checker refuses more than wanted"
  for bad in '0 1' '0 1 2 2 3' '0 1 2 4' '1 2 3 4' ''; do
    # shellcheck disable=SC2086  # words
    ! pings $bad | check_pings 3 or-more >/dev/null || die "the checker of more does not see \"$bad\""
  done
}

# ---------------------------------------------------------------- the service

# start_batond STATE_DIR
start_batond() {
  local line=''
  exec {batond}< <(exec batond --dev --device rdma --state-dir "$1" --service "$service" --shards 2 \
    --max-connections 16 --yield-microseconds 1 --hang-timeout-ms 120000 --ready-timeout-ms 120000 2>"$1.log")
  read -rt 120 line <&"$batond" || true
  [[ $line == "batond ready"* ]] || die "batond: $(cat "$1.log")"
}

# start_pingd PROGRAM STATE_DIR ADDRESS [FLAGS]: ready when it returns; its pid is $pingd.
start_pingd() {
  local line='' output
  exec {output}< <(exec "$1" --socket "$2/$service.sock" --service "$service" --listen "$3" \
    "${@:4}" 2>>"$2.pingd.log")
  # shellcheck disable=SC2034  # by who calls
  pingd=$!
  read -rt 120 line <&"$output" || true
  [[ $line == "pingd ready"* ]] || die "$1 is not ready: $(tail -n 5 "$2.pingd.log")"
}

# The process that took the first shard last.
owner() {
  events "$state" | awk '
    /^worker_attached: / { pid[$3] = $0; sub(/.*, pid /, "", pid[$3]); sub(/\).*/, "", pid[$3]) }
    /^shard_moved: shard 0 / { owner = $7 }
    END { print pid[owner] }'
}
# Connections that are established.
connected() {
  events "$state" | awk '
    /^connection: / { up[$3] = $NF == "established" }
    END { for (one in up) count += up[one]; print count + 0 }'
}
is_connected() { [[ $(connected) -eq $1 ]]; }

# disturb UPGRADES KILLS: in random order, at random moments. Two workers are ready before each: the
# owner and its heir.
disturb() {
  local event events=() upgrades=0 kills=0 version=1 owner log=$work/upgrade.log
  for ((event = 0; event < $1; ++event)); do events+=(upgrade); done
  for ((event = 0; event < $2; ++event)); do events+=(kill); done
  mapfile -t events < <(printf '%s\n' "${events[@]}" | shuf --random-source=<(yes "$RANDOM"))
  for event in "${events[@]}"; do
    pause "0.$((RANDOM % 10))"
    version=$((3 - version))
    if [[ $event == upgrade ]]; then
      baton --socket "$state/operator.sock" --timeout 120 upgrade "$service" \
        --exec "$(command -v "pingd-v$version")" --watch-window 0.1 >"$log" 2>&1 ||
        die "upgrade $upgrades: $(cat "$log")"
      upgrades=$((upgrades + 1))
    else
      owner=$(owner)
      kill -KILL "$owner" || die "the owner, $owner, is gone"
      kills=$((kills + 1))
      start_pingd "pingd-v$version" "$state" "$BATON_VM_ADDRESS:$port"
    fi
  done
  say "$upgrades upgrades, $kills kills"
}

# ---------------------------------------------------------------- the clients

# start_clients ADDRESS COUNT PINGS
start_clients() {
  local i
  clients=()
  for ((i = 0; i < $2; ++i)); do
    rping -c -a "$1" -p "$port" -C "$3" -v -V -S "$ping_bytes" >"$work/client.$i" 2>"$work/client.$i.err" &
    clients+=("$!")
  done
}

# start_endless_clients ADDRESS COUNT: they ping until end_clients, and write the line of each ping at
# once.
start_endless_clients() {
  local i
  clients=()
  for ((i = 0; i < $2; ++i)); do
    stdbuf -oL rping -c -a "$1" -p "$port" -v -V -S "$ping_bytes" >"$work/client.$i" 2>"$work/client.$i.err" &
    clients+=("$!")
  done
}
# pinged COUNT...: of every client, one after the other, the ping with that number, or a later one.
# shellcheck disable=SC2317  # wait_for calls it
pinged() {
  local i last wanted=("$@")
  for i in "${!clients[@]}"; do
    kill -0 "${clients[i]}" || die "client $i has ended: $(cat "$work/client.$i.err")"
    last=$(last_ping "$i")
    [[ ${last:-0} -ge ${wanted[i]} ]] || return 1
  done
}
# last_ping CLIENT: the number of the last one that has come back; nothing when there was none.
last_ping() { tail -n 1 "$work/client.$1" | sed -n 's/^ping data: rdma-ping-\([0-9]*\): .*/\1/p'; }
# ping_on PINGS: until all clients have so many, and one that began now.
ping_on() {
  local i last wanted=()
  for i in "${!clients[@]}"; do
    last=$(last_ping "$i")
    # The next one may be under way.
    last=$((${last:-0} + 2))
    wanted+=($((last < $1 ? $1 : last)))
  done
  patience=1000000 wait_for "$1 pings of each" pinged "${wanted[@]}"
}
# pause_clients: nothing is on the way any more when it returns.
pause_clients() {
  kill -STOP "${clients[@]}"
  pause 2
}
# end_clients PINGS: all had so many, or more, each once.
end_clients() {
  local i found failed=0
  # Not every one is told of.
  {
    kill -KILL "${clients[@]}"
    wait "${clients[@]}" || true
  } 2>/dev/null
  for i in "${!clients[@]}"; do
    found=$(check_pings "$1" or-more <"$work/client.$i") || failed=1
    say "client $i: $found $(cat "$work/client.$i.err")"
    rm "$work/client.$i"
  done
  return "$failed"
}

# check_clients PINGS: of the clients that were started, when they have ended.
check_clients() {
  local i found failed=0
  for i in "${!clients[@]}"; do
    wait "${clients[i]}" || true
    found=$(check_pings "$1" <"$work/client.$i") || failed=1
    say "client $i: $found $(grep -v 'DISCONNECT EVENT' "$work/client.$i.err" || true)"
  done
  return "$failed"
}
