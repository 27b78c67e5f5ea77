#!/usr/bin/env bash
# run_fuzzers.sh [NAME...] [--seconds N] [--runs N] [--merge] [--mutants]: builds and runs the
# fuzzers, all or those named, each for N seconds (60) and at most so many executions. Each starts
# from its inputs in tests/fuzz/corpus.tar (tests/fuzz/corpus.sh); inputs that reach something new
# are added to out/fuzz/NAME, what fails to out/fuzz/failures. Fails when one has found something,
# or has not run.
#   --merge    then keeps the fewest inputs that reach as much in tests/fuzz/corpus.tar
#   --mutants  instead: drivers with a defect, each of which has to be found in that time: by an
#              invariant that is broken or by a sanitizer. One that does not start, takes too long or
#              runs out of memory has found nothing. No fuzzer has found an unfound_mutant yet, and
#              none has to.
# The last lines are a table of what each has executed, for how long, and what it has covered; of
# mutants, how many are alive.
set -euo pipefail
cd "$(dirname "$0")/../.."

seconds=60
runs=-1
merge=false
mutants=false
names=()
while [[ $# -gt 0 ]]; do
  case $1 in
    --seconds) seconds=$2 && shift 2 ;;
    --runs) runs=$2 && shift 2 ;;
    --merge) merge=true && shift ;;
    --mutants) mutants=true && shift ;;
    *) names+=("$1") && shift ;;
  esac
done

# values_of RULE ATTRIBUTE: of the targets that a rule makes in the package of the fuzzers.
values_of() { sed -n "/^$1(/,/^)/s/^    $2 = \"\(.*\)\",\$/\1/p" tests/fuzz/BUILD.bazel; }
# Name of the program and of the corpus, by the name of a target.
declare -A program corpus
if $mutants; then
  mapfile -t unfound < <(values_of unfound_mutant name)
  mapfile -t known < <(values_of mutant name && values_of unfound_mutant name)
  for name in "${known[@]}"; do corpus[$name]=hostile_worker; done
  while read -r name under; do
    known+=("$name")
    corpus[$name]=$under
  done < <(paste -d ' ' <(values_of input_mutant name) <(values_of input_mutant under))
  for name in "${known[@]}"; do program[$name]=${name}_${corpus[$name]}_fuzzer; done
else
  mapfile -t known < <(values_of baton_fuzzer name)
  for name in "${known[@]}"; do program[$name]=${name}_fuzzer corpus[$name]=$name; done
fi
[[ ${#names[@]} -gt 0 ]] || names=("${known[@]}")
for name in "${names[@]}"; do
  if [[ ! " ${known[*]} " == *" $name "* ]]; then
    echo "run: no fuzzer \"$name\"; there are: ${known[*]}" >&2
    exit 1
  fi
done

echo "--- Building ${#names[@]} fuzzers" >&2
targets=()
for name in "${names[@]}"; do targets+=("//tests/fuzz:${program[$name]}"); done
bazel build --config=run --config=fuzz -- "${targets[@]}"
built=$(bazel info --config=fuzz bazel-bin 2>/dev/null)/tests/fuzz
rm -rf out/fuzz/corpus
mkdir -p out/fuzz/bin out/fuzz/failures
for name in "${names[@]}"; do tests/fuzz/corpus.sh unpack "${corpus[$name]}" "out/fuzz/corpus/${corpus[$name]}"; done
for name in "${names[@]}"; do  # copies: another build may replace them while they run
  cp -f "$built/${program[$name]}" out/fuzz/bin/
done

# fuzz NAME: sets result, executions, elapsed and coverage.
fuzz() {
  local name=$1 log=out/fuzz/$1.log started=$SECONDS
  mkdir -p "out/fuzz/$name"
  result=clean
  out/fuzz/bin/"${program[$name]}" -max_total_time="$seconds" -runs="$runs" -timeout=60 \
    -rss_limit_mb=4096 -len_control=0 -max_len=2048 -print_final_stats=1 \
    -artifact_prefix="out/fuzz/failures/$name-" "out/fuzz/$name" "out/fuzz/corpus/${corpus[$name]}" \
    >"$log" 2>&1 || result=FAILED
  elapsed=$((SECONDS - started))
  executions=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
  [[ ${executions:-0} -gt 0 ]] || result=FAILED
  # "#1234  DONE   cov: 912 ft: 3797 corp: ..." and "INFO: Loaded 1 modules   (33101 inline ...".
  coverage=$(sed -nE 's/^#[0-9]+.* cov: ([0-9]+) ft: ([0-9]+) .*/\1 \2/p' "$log" | tail -n 1)
  coverage=${coverage/ /" of $(sed -nE 's/^INFO: Loaded .*\(([0-9]+) inline.*/\1/p' "$log") edges, "}
}

table=()
failed=0
alive=()
for name in "${names[@]}"; do
  if $mutants; then
    echo "--- Looking for $name for $seconds seconds" >&2
    fuzz "$name"
    verdict=$(tests/fuzz/judge_mutant.sh "out/fuzz/$name.log")
    if [[ $verdict != found* ]]; then
      alive+=("$name")
      if [[ $verdict != "NOT FOUND" || " ${unfound[*]} " != *" $name "* ]]; then failed=$((failed + 1)); fi
    fi
    table+=("$(printf '%-28s %9s executions %5ss  %s' "$name" "${executions:-0}" "$elapsed" "$verdict")")
    continue
  fi
  echo "--- Fuzzing $name for $seconds seconds" >&2
  fuzz "$name"
  if [[ $result == FAILED ]]; then
    failed=$((failed + 1))
    tail -n 40 "out/fuzz/$name.log" >&2
  elif $merge; then
    rm -rf "out/fuzz/$name.fewest"
    mkdir "out/fuzz/$name.fewest"
    out/fuzz/bin/"${name}_fuzzer" -set_cover_merge=1 -max_len=2048 "out/fuzz/$name.fewest" \
      "out/fuzz/corpus/$name" "out/fuzz/$name" >"out/fuzz/$name.merge.log" 2>&1
    # Inputs with names of their own are what somebody has thought of: they stay.
    find "out/fuzz/corpus/$name" -regextype egrep -regex '.*/[0-9a-f]{12}' -delete
    for input in "out/fuzz/$name.fewest"/*; do
      cp "$input" "out/fuzz/corpus/$name/$(sha1sum "$input" | head -c 12)"
    done
    tests/fuzz/corpus.sh pack "$name" "out/fuzz/corpus/$name"
  fi
  table+=("$(printf '%-16s %9s executions %5ss  %s features  %s' "$name" "${executions:-0}" \
    "$elapsed" "$coverage" "$result")")
done
printf '%s\n' "${table[@]}"
! $mutants || echo "${#names[@]} mutants, ${#alive[@]} alive${alive[*]:+: ${alive[*]}}"
echo "$((${#names[@]} - failed)) passed, $failed failed"
[[ $failed -eq 0 ]]
