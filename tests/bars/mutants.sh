#!/usr/bin/env bash
# Deliberate defects, each a line of our sources, are each caught by a test; writes tests/simulation/MUTANTS.md.
set -euo pipefail
simulation=//tests/simulation
mapfile -t mutations < <(bazel query --output=label "labels(srcs, $simulation:mutations)" 2>/dev/null)
mapfile -t tests < <(bazel query --output=label "attr(tags, '\\bmutant\\b', $simulation:all)" 2>/dev/null)
[[ ${#tests[@]} -gt 0 && ${#tests[@]} -eq ${#mutations[@]} ]]
status=0
bazel test --config=run --keep_going --nocache_test_results "${tests[@]}" || status=$?
bazel build --config=run $simulation:mutations
files=()
for mutation in "${mutations[@]}"; do
  files+=("$(bazel info bazel-bin 2>/dev/null)/tests/simulation/${mutation#*:}")
done
[[ $status -eq 0 ]] || exit "$status"
tests/simulation/mutants_table.sh write tests/simulation/MUTANTS.md \
  "$(bazel info bazel-testlogs 2>/dev/null)/tests/simulation" "${files[@]}"
cat tests/simulation/MUTANTS.md
