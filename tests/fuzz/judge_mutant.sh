#!/usr/bin/env bash
# judge_mutant.sh LOG: prints what became of a fuzzer that looked for a deliberate defect, as its output in LOG
# has it. The first word is "found" when an invariant was broken, or when a sanitizer objected or a span that
# was asked for more than it has. A fuzzer that did not start, took too long, ran out of memory or was killed
# has found nothing.
set -euo pipefail
log=$1
executions=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
oracles='broken invariant: .*|ERROR: AddressSanitizer: .*|runtime error: .*|after throwing .*out_of_range.*'
how=$(grep -aoE "$oracles" "$log" |
  grep -m1 -avE 'out of memory|allocation size' || true)
if [[ ${executions:-0} -eq 0 ]]; then
  echo "DID NOT RUN: $(tail -n 1 "$log")"
elif [[ -n $how ]]; then
  echo "found: ${how:0:60}"
elif grep -qaE '^Done [0-9]+ runs' "$log"; then
  echo "NOT FOUND"
else
  echo "ENDED, AND NO ORACLE HAS SAID WHY: $(grep -m1 -aE 'ERROR: ' "$log" || tail -n 1 "$log")"
fi
