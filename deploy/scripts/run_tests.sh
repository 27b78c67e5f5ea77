#!/usr/bin/env bash
# run_tests.sh [--quick]
# Builds everything, runs every test that is not tagged manual, and ends with the line "N passed,
# N failed[, N skipped]": report_tests.py says what it counts. --quick leaves out the tests that run in
# a virtual machine. Bazel repeats only those that a change can affect.
set -euo pipefail
cd "$(dirname "$0")/../.."
case "$*" in
  '') quick='' ;;
  --quick) quick=yes ;;
  *) echo "run: test: \"$*\" is not --quick, which is all that it takes" >&2 && exit 2 ;;
esac

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# What the virtual machine takes comes over the network, the first time.
no_machine=
built=()
if [[ -n $quick ]]; then
  built=(--build_tests_only)
elif ! { deploy/scripts/install_packages.sh vm && deploy/vm/prepare.sh; } >"$work/machine" 2>&1; then
  cat "$work/machine" >&2
  no_machine=$(awk 'NF {last = $0} END {print last}' "$work/machine")
fi

# What cannot be had is told by the test that needs it.
if command -v npm >/dev/null || deploy/scripts/install_packages.sh node; then
  tests/clients/node/prepare.sh >/dev/null || true
fi

echo "--- Building and testing everything (the first time takes several minutes)" >&2
arguments=() events=("$work/events")
bazel test --config=run --keep_going --build_event_json_file="$work/events" --test_tag_filters=-vm "${built[@]}" \
  //... || arguments+=(--status $?)
# Machines afterwards: what is compiled beside them would take the time that they have.
if [[ -z $quick && -z $no_machine ]]; then
  events+=("$work/machine_events")
  bazel test --config=run --keep_going --build_event_json_file="$work/machine_events" --test_tag_filters=vm --local_test_jobs=2 \
    //tests/vm/... || arguments+=(--status $?)
fi
[[ -n $quick ]] || deploy/scripts/collect_binaries.sh out/bin

machine_tests() { bazel query 'attr(tags, "[\[ ]vm[,\]]", tests(//tests/vm/...))' 2>/dev/null; }
if [[ -n $no_machine ]]; then
  mapfile -t targets < <(machine_tests)
  arguments+=(--no-machine "$no_machine" "${targets[@]}")
fi
if [[ -n $quick ]]; then
  echo "not run: $(machine_tests | wc -l) tests in a virtual machine"
fi
deploy/scripts/report_tests.py "${events[@]}" "${arguments[@]}"
