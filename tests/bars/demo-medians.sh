#!/usr/bin/env bash
# Evidence: the demonstration of this tree beside that of another build, BATON_OTHER_DEMO, in turns.
# demo-medians.sh [PROGRAM [DIRECTORY]]: PROGRAM is the other demonstration, DIRECTORY has the programs that it starts
# (BATON_OTHER_BIN). BATON_ROUNDS rounds (5) of each, the other one first. Each run has to end with nothing lost,
# repeated, reordered or disconnected. Of handoffs, upgrades and hot crashes the median of the rounds' medians is at
# most BATON_MOST times (1.3) the other's. Prints every round, with what other programs used of the processors
# meanwhile: what they take makes every time longer. BATON_DEMO_ARGUMENTS: further arguments of the demonstrations, and
# BATON_OUR_ARGUMENTS: of this tree's alone ("--mode native": native workers beside brokered ones of before).
# Both sides have to run with the same real-time priority. Native workers get none without RLIMIT_RTPRIO (ulimit -r).
# Exits with 3 where there is no other build to compare with.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."
other=${1:-${BATON_OTHER_DEMO:-}}
other_bin=${2:-${BATON_OTHER_BIN:-}}
if [[ ! -x $other || ! -d $other_bin ]]; then
  echo "name a demonstration and the directory of its programs: BATON_OTHER_DEMO, BATON_OTHER_BIN" >&2
  exit 3
fi
ours=${BATON_OUR_DEMO:-}
if [[ -z $ours ]]; then
  bazel build --config=run //tests/demo:demo
  ours=$(bazel info bazel-bin 2>/dev/null)/tests/demo/demo
fi
our_bin=${BATON_BIN:-$PWD/out/bin}
read -r -a arguments <<<"${BATON_DEMO_ARGUMENTS:-}"
read -r -a our_arguments <<<"${BATON_OUR_ARGUMENTS:-}"
rounds=${BATON_ROUNDS:-5}
results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT

# run SIDE ROUND PROGRAM DIRECTORY [ARGUMENTS]: one demonstration, whose result is then in SIDE.ROUND.
run() {
  BATON_BIN=$4 "$3" --json --baseline-runs 0 --output "$results/picture" "${arguments[@]}" "${@:5}" \
    >"$results/$1.$2" 2>"$results/$1.$2.log" || true
  python3 tests/bars/demo_medians.py row "$1" "$results/$1.$2" || tail -5 "$results/$1.$2.log" >&2
}

python3 tests/bars/demo_medians.py head
for ((round = 1; round <= rounds; ++round)); do
  run other "$round" "$other" "$other_bin"
  run ours "$round" "$ours" "$our_bin" "${our_arguments[@]}"
done
python3 tests/bars/demo_medians.py judge "${BATON_MOST:-1.3}" "$results"
