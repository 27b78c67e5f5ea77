#!/usr/bin/env bash
# run_tests.sh [--quick]
# run_tests.sh [--filter CASES] TARGET...
# Builds everything, runs every test that is not tagged manual, and ends with the line "N passed,
# N failed[, N skipped]": report_tests.py says what it counts. --quick leaves out the tests that run in
# a virtual machine. TARGET: these tests alone, and of them those whose names match CASES (GoogleTest's
# --gtest_filter). Bazel repeats only those that a change can affect.
set -euo pipefail
cd "$(dirname "$0")/../.."
quick='' targets=() filter=()
while [[ $# -gt 0 ]]; do
  case $1 in
    --quick) quick=yes ;;
    --filter) filter=(--test_filter="${2:?--filter needs the names of cases}") && shift ;;
    //*) targets+=("$1") ;;
    *)
      echo "run: test: \"$1\" is neither --quick, --filter CASES nor a target such as //tests/lib/driver:all" >&2
      exit 2
      ;;
  esac
  shift
done
if [[ ${#targets[@]} -eq 0 && ${#filter[@]} -gt 0 || ${#targets[@]} -gt 0 && -n $quick ]]; then
  echo "run: test: --filter goes with targets, and --quick without" >&2
  exit 2
fi

# What machines may have of the host. Two tests at a time, for Bazel takes a processor for each; of those whose size is
# enormous (800 MB to Bazel, and 300 MB for a large one) only one; and jobs enough that another can go before it.
machines=(--local_cpu_resources=2 --local_ram_resources=1100 --jobs=8)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

if [[ ${#targets[@]} -gt 0 ]]; then
  limits=(--local_test_jobs=2)
  for target in "${targets[@]}"; do
    [[ $target == //tests/vm* && $target != *_soft ]] || continue
    limits=("${machines[@]}")
    deploy/scripts/install_packages.sh vm && deploy/vm/prepare.sh >&2
    break
  done
  status=()
  bazel test --config=run --keep_going --build_event_json_file="$work/events" "${limits[@]}" "${filter[@]}" \
    "${targets[@]}" || status=(--status $?)
  deploy/scripts/report_tests.py "$work/events" "${status[@]}"
  exit
fi

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
  tests/system/node_client/prepare.sh >/dev/null || true
fi

echo "--- Building and testing everything (the first time takes several minutes)" >&2
# Tests wait for what they have started about half of their time: two more of them than there are processors. Bazel
# compiles no more at once than there are.
at_once=$(($(nproc) + 2))
arguments=() events=("$work/events")
bazel test --config=run --keep_going --build_event_json_file="$work/events" --test_tag_filters=-vm "${built[@]}" \
  --jobs="$at_once" --local_test_jobs="$at_once" //... || arguments+=(--status $?)
# Machines afterwards: what is compiled beside them would take the time that they have.
if [[ -z $quick && -z $no_machine ]]; then
  events+=("$work/machine_events")
  bazel test --config=run --keep_going --build_event_json_file="$work/machine_events" --test_tag_filters=vm "${machines[@]}" \
    //tests/vm/... || arguments+=(--status $?)
fi
[[ -n $quick ]] || deploy/scripts/collect_binaries.sh out/bin

# Those that are manual are parts of others.
machine_tests() {
  bazel query 'attr(tags, "[\[ ]vm[,\]]", tests(//tests/vm/...)) except attr(tags, "[\[ ]manual[,\]]", //tests/vm/...)' \
    2>/dev/null
}
if [[ -n $no_machine ]]; then
  mapfile -t targets < <(machine_tests)
  arguments+=(--no-machine "$no_machine" "${targets[@]}")
fi
if [[ -n $quick ]]; then
  echo "not run: $(machine_tests | wc -l) tests in a virtual machine"
fi
deploy/scripts/report_tests.py "${events[@]}" "${arguments[@]}"
