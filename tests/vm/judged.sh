#!/usr/bin/env bash
# judged.sh [--killed-owners] SCRIPT [ARGUMENTS]: runs SCRIPT, then judges what rxe0 has counted meanwhile
# (check_counters; --killed-owners is its $owners_are_killed).
# Ends with the exit status of SCRIPT, or with 1 when SCRIPT has passed and the counters have not.
set -euo pipefail
# shellcheck source=tests/vm/rxe_common.sh
source "$(dirname "$(readlink -f "$0")")/rxe_common.sh"
counted=$BATON_VM_RESULTS/statistics
if [[ $1 == --killed-owners ]]; then
  # shellcheck disable=SC2034  # of check_counters
  owners_are_killed=yes
  shift
fi

count_timers
bash "$(realpath "$1")" "${@:2}"
# SCRIPT may have left programs that go on. What they send again has not arrived for a moment.
for _ in 1 2 3; do
  statistics >"$counted"
  ! check_counters <"$counted" &>/dev/null || break
  sleep 1
done
check_counters <"$counted" || {
  echo "judged.sh: ${1##*/} has passed, but the device lost something, or was not ready to receive" >&2
  exit 1
}
