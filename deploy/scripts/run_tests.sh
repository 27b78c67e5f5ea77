#!/usr/bin/env bash
# Builds everything, runs every test that is not tagged manual, and ends with the line "N passed,
# N failed[, N skipped]": report_tests.py says what it counts.
set -euo pipefail
cd "$(dirname "$0")/../.."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# What the virtual machine takes comes over the network, the first time.
no_machine=
selected=()
if ! { deploy/scripts/install_packages.sh vm && deploy/vm/prepare.sh; } >"$work/machine" 2>&1; then
  cat "$work/machine" >&2
  no_machine=$(awk 'NF {last = $0} END {print last}' "$work/machine")
  selected=(--test_tag_filters=-vm)
fi

# What cannot be had is told by the test that needs it.
if command -v npm >/dev/null || deploy/scripts/install_packages.sh node; then
  tests/clients/node/prepare.sh >/dev/null || true
fi

echo "--- Building and testing everything (the first time takes several minutes)" >&2
status=0
bazel test --config=run --keep_going --build_event_json_file="$work/events" "${selected[@]}" //... ||
  status=$?
deploy/scripts/collect_binaries.sh out/bin

arguments=(--status "$status")
if [[ -n $no_machine ]]; then
  mapfile -t targets < <(bazel query 'tests(//tests/vm/...)' 2>/dev/null)
  arguments+=(--no-machine "$no_machine" "${targets[@]}")
fi
deploy/scripts/report_tests.py "$work/events" "${arguments[@]}"
