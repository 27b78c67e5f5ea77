#!/usr/bin/env bash
# Services with native workers; to be sourced, after ledger_common.sh or pingd_common.sh. They are on rxe0 in the
# machine, and on the soft device elsewhere: there $BATON_SOFT_DIRECTORY is the test's own (run_on_soft.sh).
# shellcheck disable=SC2154  # work, state and port are theirs
set -euo pipefail

# What services and peers call the device, and its address. States are directories in $states.
if [[ -n ${BATON_SOFT_DIRECTORY:-} ]]; then
  device=soft device_config='soft {}' address=127.0.0.1 states=$BATON_SOFT_DIRECTORY
  state=$states/baton
  # shellcheck disable=SC2034  # wait_for's, where processes start soon
  look_again=0.1 patience=60
  # shellcheck disable=SC2034  # of scripts
  some_load=()
  # shellcheck disable=SC2317  # they are
  random_addresses() { true; }
  # rxe0 alone counts what it loses.
  begin_judgement() { true; }
  end_judgement() { true; }
else
  device=rdma:rxe0 device_config='rdma { device: "rxe0" }' address=$BATON_VM_ADDRESS states=/run
  # Flags of a peer whose load is not what is tested: at full speed it takes the time of what an operator starts.
  # shellcheck disable=SC2034  # of scripts
  some_load=(--rate 200)
  # begin_judgement, end_judgement: nothing was lost in between. After rxe_common.sh.
  begin_judgement() { prefer_the_device && count_timers; }
  end_judgement() { statistics | check_counters || die "the device lost something, or was not ready"; }
fi

# native_service SERVICE OBJECT [FIELDS]: its configuration; native workers run OBJECT with $worker_flags. FIELDS are
# the service's, and $native_fields of `native` there. The workers' user is batond's, unless these say otherwise.
native_service() {
  local name=$1 object=$2 fields=${3:-} field argument arguments='' native=${native_fields:-}
  [[ $native == *uid:* ]] || native+=" uid: $EUID gid: $(id -g)"
  for argument in --socket "$state/$name.sock" --service "$name" \
    --listen "$address:$port" "${worker_flags[@]}"; do
    arguments+=" arguments: \"$argument\""
  done
  for field in 'shards: 2' 'max_connections: 16' 'ready_timeout_ms: 120000' 'hang_timeout_ms: 120000' \
    'yield_microseconds: 1'; do
    [[ $fields == *"${field%:*}"* ]] || fields+=" $field"
  done
  echo "services { name: \"$name\" device { $device_config }" \
    "$fields mode: NATIVE native { object: \"$object\"$arguments $native } }"
}
# start_native SERVICE OBJECT [FIELDS]: batond with that service alone.
start_native() {
  # A free one, which `follow` reads.
  [[ $device != soft ]] || port=0
  echo "state_dir: \"$state\" $(native_service "$@")" >"$work/config"
  # Files: the workers, which have the same output, would fill a pipe that nobody reads. What a former batond said is
  # not there any more when this one is looked for.
  : >"$state.out"
  : >"$state.log"
  batond --start-timeout 300 "${batond_flags[@]}" --config "$work/config" \
    >"$state.out" 2>"$state.log" &
  batond=$!
  wait_for "batond" has_started
  exec {log}<"$state.log"
}
worker_flags=() batond_flags=()
# shellcheck disable=SC2317  # wait_for calls it
has_started() {
  kill -0 "$batond" || die "batond: $(cat "$state.log")"
  grep -q '^batond ready' "$state.out"
}

# follow: reads what has been logged since. Starts no process: that takes long here.
#   pid_of[WORKER], object_of[WORKER] (without its directory)
#   owner_of[SHARD] (who made its last first commit), ready[WORKER] (that lives)
#   moves, forks, ends (how many)
#   port (where the last that said so listens)
declare -A pid_of=() object_of=() owner_of=() ready=()
moves=0 forks=0 ends=0 partial=''
follow() {
  local line
  while IFS= read -r line <&"$log" || { partial+=$line && false; }; do
    line=$partial$line partial=''
    if [[ $line =~ worker_attached:\ worker\ ([0-9]+)\ \(([^ ]+)\ .*pid\ ([0-9]+) ]]; then
      object_of[${BASH_REMATCH[1]}]=${BASH_REMATCH[2]} pid_of[${BASH_REMATCH[1]}]=${BASH_REMATCH[3]}
    elif [[ $line =~ worker_ready:\ worker\ ([0-9]+) ]]; then
      ready[${BASH_REMATCH[1]}]=1
    elif [[ $line =~ native_worker_ended:\ worker\ ([0-9]+) ]]; then
      unset "ready[${BASH_REMATCH[1]}]"
      ends=$((ends + 1))
    elif [[ $line =~ worker_(dead|detached):\ worker\ ([0-9]+) ]]; then
      unset "ready[${BASH_REMATCH[2]}]"
    elif [[ $line =~ worker_output:\ .*\ ready\ .*port=([0-9]+)$ ]]; then
      port=${BASH_REMATCH[1]}
    elif [[ $line == *native_worker_forked:* ]]; then
      forks=$((forks + 1))
    elif [[ $line =~ shard_kept:\ shard\ ([0-9]+)\ epoch\ [0-9]+:\ worker\ ([0-9]+) ]]; then
      owner_of[${BASH_REMATCH[1]}]=${BASH_REMATCH[2]}
    elif [[ $line =~ shard_moved:\ shard\ ([0-9]+)\ epoch\ [0-9]+:\ worker\ ([0-9]+) ]]; then
      owner_of[${BASH_REMATCH[1]}]=${BASH_REMATCH[2]}
      moves=$((moves + 1))
    fi
  done
}

# are_ready COUNT: workers, and it is known where they listen.
are_ready() { follow && [[ ${#ready[@]} -ge $1 && $port -ne 0 ]]; }
# are_served COUNT: shards.
are_served() { follow && [[ ${#owner_of[@]} -eq $1 ]]; }
# went_on WORKER COUNT: it owns nothing, and so many workers are ready.
went_on() {
  local owner
  are_ready "$2" && [[ -z ${ready[$1]:-} ]] || return 1
  for owner in "${owner_of[@]}"; do [[ $owner != "$1" ]] || return 1; done
}
# are_gone PID...
are_gone() {
  local pid
  for pid in "$@"; do ! kill -0 "$pid" 2>/dev/null || return 1; done
}
# soon COMMAND...: waits until it holds, closely, and says nothing.
soon() {
  local deadline=$((SECONDS + ${patience:-120}))
  until "$@"; do
    [[ $SECONDS -lt $deadline ]] || die "waited in vain for $*"
    pause 0.02
  done
}

# kill_unfollowed DRIVER: with its twin, which would go on in its place.
kill_unfollowed() {
  kill -STOP "$1"
  pkill -KILL -P "$1" -x baton-twin || true
  kill -KILL "$1"
}

# kill_owner SHARD SIGNAL: returns when another worker goes on with its shards and one more stands by:
# two are ready. The pid that it had is $killed.
kill_owner() {
  local owner
  follow
  owner=${owner_of[$1]}
  killed=${pid_of[$owner]}
  kill "-$2" "$killed" || die "worker $owner, $killed, is gone"
  soon went_on "$owner" 2
}

# all_run OBJECT: two workers are ready, and all that are run it; so do those who own something.
all_run() {
  local worker
  are_ready 2 || return 1
  for worker in "${!ready[@]}" "${owner_of[@]}"; do
    [[ ${object_of[$worker]} == "$1" ]] || return 1
  done
}
# upgrade_to SERVICE OBJECT: returns when nobody of the former one is left.
upgrade_to() {
  baton --socket "$state/operator.sock" --timeout 300 upgrade "$1" --exec "$BATON_BIN/$2" \
    --watch-window 0.1 >"$work/upgrade.log" 2>&1 || die "upgrade to $2: $(cat "$work/upgrade.log")"
  soon all_run "$2"
}

# blackouts: what the keeper says of the shards' blackouts, in microseconds.
blackouts() {
  sed -n 's/.*shard_moved: .* epoch \([0-9]*\): .* after \([0-9]*\) us$/\1 \2/p' "$state.log" |
    awk '$1 > 1 { print $2 }' | sort -n |
    awk '{ us[NR] = $1 } END { printf "%d blackouts, in us p50 %d, p99 %d, longest %d\n", NR,
      us[int((NR + 1) / 2)], us[int(NR * 0.99 + 0.99)], us[NR] }'
}
