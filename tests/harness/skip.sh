#!/usr/bin/env bash
# To be sourced by tests that are scripts.
set -euo pipefail

# skip SUITE CASE WHY: ends the test, as a skipped case that report_tests.py counts and compares with
# tests/expected_skips.txt.
skip() {
  echo "skipped: $3"
  [[ -z ${XML_OUTPUT_FILE:-} ]] || cat >"$XML_OUTPUT_FILE" <<XML
<testsuites><testsuite name="$1">
<testcase classname="$1" name="$2" result="skipped">
<skipped message="$3"/>
</testcase></testsuite></testsuites>
XML
  exit 0
}
