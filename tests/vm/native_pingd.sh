#!/usr/bin/env bash
# native_pingd.sh PINGS PINGS_OF_EIGHT UPGRADES KILLS [SEED]: Debian's rping, or on the soft device one that speaks
# like it (tests/worker/examples/pingd), against a native pingd, which is upgraded, and whose owner is killed, in random order at random moments: one client,
# then eight with their pings each, or as many as there are until the last kill, and some after it;
# every ping comes back once.
set -euo pipefail
here=$(dirname "$0")
# shellcheck source=tests/vm/pingd_common.sh
source "$here/pingd_common.sh"
# shellcheck source=tests/vm/native_common.sh
source "$here/native_common.sh"
pings=$1 pings_of_eight=$2 upgrades=$3 kills=$4 seed=${5:-$RANDOM}
RANDOM=$seed
say "seed $seed"

# Less than the machine's time, so that what all have said is shown.
# shellcheck disable=SC2034  # of wait_for
patience=120
trap '[[ $? -eq 0 ]] || tail -n 60 "$state.log" >&2' EXIT

# disturb_native UPGRADES KILLS: two workers are ready before each: the owner and its heir.
version=1
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

test_checkers
begin_judgement
start_native "$service" "$BATON_BIN/pingd-v1.so"
wait_for "two workers" are_ready 2

for count in 1 8; do
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
