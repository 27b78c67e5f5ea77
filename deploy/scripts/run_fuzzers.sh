#!/usr/bin/env bash
# run_fuzzers.sh [NAME...] [--seconds N] [--runs N]: builds and runs the fuzzers, all or those named,
# each for N seconds (60) and at most so many executions. They start from tests/fuzz/corpus/NAME;
# inputs that reach something new are added to out/fuzz/NAME, what fails to out/fuzz/failures.
# The last line of each says how many inputs it ran. Fails when one has found something.
set -euo pipefail
cd "$(dirname "$0")/../.."

seconds=60
runs=-1
names=()
while [[ $# -gt 0 ]]; do
  case $1 in
    --seconds) seconds=$2 && shift 2 ;;
    --runs) runs=$2 && shift 2 ;;
    *) names+=("$1") && shift ;;
  esac
done
mapfile -t known < <(sed -n '/^baton_fuzzer/,/^)/s/^    name = "\(.*\)",$/\1/p' \
  tests/fuzz/BUILD.bazel)
[[ ${#names[@]} -gt 0 ]] || names=("${known[@]}")
for name in "${names[@]}"; do
  if [[ ! " ${known[*]} " == *" $name "* ]]; then
    echo "run: no fuzzer \"$name\"; there are: ${known[*]}" >&2
    exit 1
  fi
done

echo "--- Building ${#names[@]} fuzzers" >&2
targets=()
for name in "${names[@]}"; do targets+=("//tests/fuzz:${name}_fuzzer"); done
bazel build --config=run --config=fuzz -- "${targets[@]}"
built=$(bazel info --config=fuzz bazel-bin 2>/dev/null)/tests/fuzz
mkdir -p out/fuzz/bin out/fuzz/failures
for name in "${names[@]}"; do  # copies: another build may replace them while they run
  cp -f "$built/${name}_fuzzer" out/fuzz/bin/
done

failed=0
for name in "${names[@]}"; do
  echo "--- Fuzzing $name for $seconds seconds" >&2
  mkdir -p "out/fuzz/$name"
  options=(-max_total_time="$seconds" -runs="$runs" -timeout=60 -rss_limit_mb=4096
    -len_control=0 -max_len=4096 -print_final_stats=1 -verbosity=0
    -artifact_prefix="out/fuzz/failures/$name-")
  log=out/fuzz/$name.log
  result=clean
  out/fuzz/bin/"${name}_fuzzer" "${options[@]}" "out/fuzz/$name" "tests/fuzz/corpus/$name" \
    >"$log" 2>&1 || result=FAILED
  executions=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
  if [[ $result == FAILED ]]; then
    failed=$((failed + 1))
    tail -n 40 "$log" >&2
  fi
  echo "$name: ${executions:-0} executions, $result"
done
[[ $failed -eq 0 ]]
