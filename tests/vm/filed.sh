#!/usr/bin/env bash
# filed.sh MODE MEBIBYTES RATE UPGRADES KILLS [SEED]: baton-get fetches a tree of MEBIBYTES from filed, in files of 4 KiB
# to 256 MiB, at RATE bytes a second at most, again and again, while filed is upgraded and killed in random order at
# random moments. Every tree is byte-identical, and each is fetched over one connection: baton-get never makes a second.
# MODE: BROKERED or NATIVE. On rxe0 in the machine, and on the soft device elsewhere (run_on_soft.sh).
set -euo pipefail
mode=$1 mebibytes=$2 rate=$3 upgrades=$4 kills=$5 seed=${6:-$RANDOM}
state=/run/baton port=7475
# shellcheck source=tests/vm/common.sh
source "$(dirname "$0")/common.sh"
# shellcheck source=tests/vm/rxe_common.sh
source "$(dirname "$0")/rxe_common.sh"
# shellcheck source=tests/vm/native_common.sh
source "$(dirname "$0")/native_common.sh"
trap '[[ $? -eq 0 ]] || tail -n 40 "$state.log" "$work"/*.log >&2' EXIT

fields='shards: 1 outside_effects: true connection_state_bytes: 512 shard_heap_bytes: 33554432'
fields+=' max_connections: 16 ready_timeout_ms: 120000 hang_timeout_ms: 120000'
tree=$work/tree version=1

# make_tree: each size from 4 KiB to 256 MiB by turns, as far as they fit, and 256 files of 4 KiB beside them.
make_tree() {
  local left=$((mebibytes << 20)) size=4096 number=0
  mkdir -p "$tree/small" "$tree/empty"
  head -c $((256 * 4096)) /dev/urandom | split -b 4096 -a 3 -d - "$tree/small/f"
  left=$((left - 256 * 4096))
  while [[ $left -ge 4096 ]]; do
    [[ $size -le $((256 << 20)) && $size -le $left ]] || size=4096
    mkdir -p "$tree/d$((number % 5))"
    head -c "$size" /dev/urandom >"$tree/d$((number % 5))/f$number"
    left=$((left - size)) size=$((size * 2)) number=$((number + 1))
  done
}

# ---------------------------------------------------------------- the service

# start_brokered: batond with filed, and two workers.
start_brokered() {
  [[ $device != soft ]] || port=0
  echo "state_dir: \"$state\" services { name: \"filed\" device { $device_config } $fields" \
    'yield_microseconds: 1 }' >"$work/config"
  : >"$state.out"
  : >"$state.log"
  batond --start-timeout 300 --config "$work/config" >"$state.out" 2>"$state.log" &
  batond=$!
  wait_for "batond" has_started
  exec {log}<"$state.log"
  start_filed
  start_filed
}
# start_filed: a worker of $version, ready when it returns.
start_filed() {
  local line='' output
  exec {output}< <(exec "filed-v$version" --socket "$state/filed.sock" --listen "$address:$port" \
    --directory "$tree" 2>>"$work/filed.log")
  read -rt 120 line <&"$output" || true
  [[ $line == "filed ready"* ]] || die "filed is not ready: $(tail -n 5 "$work/filed.log")"
  port=${line##*port=}
}

# kill_brokered: its heir goes on, and another worker stands by.
kill_brokered() {
  local owner
  start_filed
  follow
  owner=${owner_of[0]}
  kill -KILL "${pid_of[$owner]}" || die "the owner, worker $owner, is gone"
  soon went_on "$owner" 1
}

disturb() {
  local event events=() i
  for ((i = 0; i < upgrades; ++i)); do events+=(upgrade); done
  for ((i = 0; i < kills; ++i)); do events+=(kill); done
  mapfile -t events < <(printf '%s\n' "${events[@]}" | shuf --random-source=<(yes "$RANDOM"))
  for event in "${events[@]}"; do
    [[ ! -e $work/failed ]] || die "a tree was not fetched: $(cat "$work/failed")"
    pause "0.$((RANDOM % 10))"
    case $event-$mode in
      kill-NATIVE) kill_owner 0 KILL ;;
      kill-BROKERED) kill_brokered ;;
      upgrade-NATIVE)
        version=$((3 - version))
        upgrade_to filed "filed-v$version.so"
        ;;
      upgrade-BROKERED)
        version=$((3 - version))
        baton --socket "$state/operator.sock" --timeout 300 upgrade filed --exec "$BATON_BIN/filed-v$version" \
          --watch-window 0.1 >"$work/upgrade.log" 2>&1 || die "the upgrade: $(cat "$work/upgrade.log")"
        ;;
    esac
    say "$event"
  done
}

# ---------------------------------------------------------------- the client

# fetch_all: until $work/stop is there; the last tree is fetched whole.
fetch_all() {
  local trees=0
  while [[ $trees -eq 0 || ! -e $work/stop ]]; do
    rm -rf "$work/fetched"
    fetch >"$work/fetch.out" 2>&1 || {
      tail -n 5 "$work/fetch.out" >"$work/failed"
      return 1
    }
    trees=$((trees + 1))
    say "$(grep 'over one connection' "$work/fetch.out")"
  done
  say "$trees trees, all byte-identical"
}
fetch() {
  baton-get "$address:$port" -o "$work/fetched" --device "$device" --limit-rate "$rate" --patience-ms 600000 || return 1
  diff -r "$tree" "$work/fetched"
}

RANDOM=$seed
say "seed $seed"
[[ $device == soft ]] || prefer_the_device
make_tree
say "a tree of $mebibytes MiB in $(find "$tree" -type f | wc -l) files"
if [[ $mode == NATIVE ]]; then
  # shellcheck disable=SC2034  # of start_native
  worker_flags=(--directory "$tree")
  start_native filed "$BATON_BIN/filed-v1.so" "$fields"
  wait_for "two workers" are_ready 2
else
  start_brokered
fi
fetch_all &
fetcher=$!
wait_for "the shard to be served" are_served 1
disturb
touch "$work/stop"
wait "$fetcher" || die "a tree was not fetched: $(cat "$work/failed")"
blackouts
echo "$upgrades upgrades, $kills kills with seed $seed"
