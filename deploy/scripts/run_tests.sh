#!/usr/bin/env bash
# Builds everything, runs every test that is not tagged manual, prints each skipped case with its reason, and ends
# with the line "N passed, N failed[, N skipped]". The counts are of test cases; a target that
# failed without naming a case (it crashed, timed out or did not build) counts as one, and so does
# one that needs a virtual machine (//tests/vm) where there is none: it is skipped.
# With CI=true a skip that tests/expected_skips.txt does not list is a failure.
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
bazel test --config=run --keep_going "${selected[@]}" //... 2>&1 | tee "$work/output" || status=$?
logs=$(bazel info bazel-testlogs 2>/dev/null)
deploy/scripts/collect_binaries.sh out/bin

# "//tests/base:check_test  (cached) PASSED in 0.1s" -> "//tests/base:check_test PASSED"
sed -nE 's/^(\/\/[^ ]+) +(\(cached\) )?(PASSED|FLAKY|FAILED|TIMEOUT|NO STATUS|INCOMPLETE|REMOTE FAILURE).*/\1 \3/p' \
  "$work/output" | sort -u >"$work/results"

# One line per case of a test.xml: "failed|skipped|passed SUITE.CASE REASON".
cases() {
  cat "$@" | tr -d '\r' | awk '
    function attribute(name,   value) {
      if (!match($0, " " name "=\"[^\"]*\"")) return ""
      value = substr($0, RSTART, RLENGTH)
      sub("^ " name "=\"", "", value)
      sub("\"$", "", value)
      return value
    }
    function flush() { if (id != "") print state, id, reason; id = "" }
    /<testcase / {
      flush()
      id = attribute("classname") "." attribute("name")
      gsub(/ /, "_", id)
      state = "passed"
      reason = ""
      if (attribute("result") == "skipped") state = "skipped"
      if (attribute("result") == "suppressed") id = ""
    }
    /<skipped/ {
      state = "skipped"
      reason = attribute("message")
      gsub(/&#x0A;/, " ", reason)
      gsub(/&quot;/, "\"", reason)
      gsub(/&apos;/, "\047", reason)
      gsub(/&lt;/, "<", reason)
      gsub(/&gt;/, ">", reason)
      gsub(/&amp;/, "\\&", reason)
    }
    /<failure|<error/ { state = "failed" }
    END { flush() }'
}

passed=0
failed=0
skipped=0
unexpected=0

# skip REASON TARGET [CASE]
skip() {
  skipped=$((skipped + 1))
  echo "skipped: ${*:2}: $1"
  if [[ $# -eq 2 ]] || ! grep -qxF -- "$3" <(sed 's/[[:space:]]*#.*//' tests/expected_skips.txt); then
    unexpected=$((unexpected + 1))
    [[ ${CI:-} != true ]] || echo "  not in tests/expected_skips.txt: a failure"
  fi
}

while read -r target result; do
  path=${target#//}
  files=("$logs/${path/://}/test.xml")
  if [[ ! -f ${files[0]} ]]; then  # a sharded test has one for each shard, a broken one none
    mapfile -t files < <(find "$logs/${path/://}/" -path '*/shard_*/test.xml' 2>/dev/null)
  fi
  : >"$work/cases"
  [[ ${#files[@]} -eq 0 ]] || cases "${files[@]}" >"$work/cases"
  in_target=$(grep -c '^failed ' "$work/cases" || true)
  if [[ $result == PASSED || $result == FLAKY ]]; then
    in_target=0
  elif [[ $in_target -eq 0 ]]; then
    in_target=1
  fi
  failed=$((failed + in_target))
  passed=$((passed + $(grep -c '^passed ' "$work/cases" || true)))
  while read -r _ name reason; do
    skip "${reason:-no reason given}" "$target" "$name"
  done < <(grep '^skipped ' "$work/cases" || true)
done <"$work/results"
if [[ -n $no_machine ]]; then
  while read -r target; do
    skip "there is no virtual machine: $no_machine" "$target"
  done < <(bazel query 'tests(//tests/vm/...)' 2>/dev/null)
fi

if [[ ${CI:-} == true ]]; then
  failed=$((failed + unexpected))
  skipped=$((skipped - unexpected))
fi
# A build that broke leaves no test to count.
if [[ $status -ne 0 && $failed -eq 0 ]]; then failed=1; fi
line="$passed passed, $failed failed"
if [[ $skipped -gt 0 ]]; then line+=", $skipped skipped"; fi
echo "$line"
[[ $failed -eq 0 ]]
