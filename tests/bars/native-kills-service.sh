#!/usr/bin/env bash
# 3,000 owners of a native service killed at random under checked load on Soft-RoCE: 0 lost, 0 duplicated, 0 reordered.
# BATON_KILLS (3000), of which BATON_KILLS_DONE (0) were made by earlier runs, in machines of 250 each;
# BATON_SEED of the first machine (any; the others count on). After BATON_SECONDS (14400) it stops,
# says how it is resumed, and fails.
set -euo pipefail
deploy/scripts/install_packages.sh vm
kills=${BATON_KILLS:-3000} total=${BATON_KILLS_DONE:-0} seed=${BATON_SEED:-$((RANDOM % 10000))}
limit=${BATON_SECONDS:-14400}

# Eight workers: with four, a worker lives for less than 2 s when kills follow each other closely, and
# the keeper, which takes that for an object that crashes at once, waits longer and longer, to 5 s,
# before it forks another.
workers=8
# Without a keeper of its own to fork from, a machine has nothing to go on with: each begins anew.
while [[ $total -lt $kills ]]; do
  left=$((limit - SECONDS))
  if [[ $left -lt 120 ]]; then
    echo "$total of $kills kills in time; go on with BATON_KILLS_DONE=$total BATON_SEED=$seed"
    exit 1
  fi
  wanted=$((kills - total < 250 ? kills - total : 250))
  output=$(deploy/vm/run_vm.sh --timeout "$((left + 300))" tests/vm/native_kills.sh kills "$wanted" \
    "$((left - 60))" "$workers" "$seed") || { echo "$output" && echo "seed $seed failed after $total" && exit 1; }
  echo "${output##*$'\n'}"
  grep -E 'blackouts|"sent"|longest wait' <<<"$output"
  made=$(sed -n 's/^\([0-9]*\) kills with seed .*/\1/p' <<<"$output")
  total=$((total + made)) seed=$((seed + 1))
done
echo "$total kills"
