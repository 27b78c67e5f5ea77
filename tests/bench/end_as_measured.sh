#!/usr/bin/env bash
# end_as_measured.sh CASE STATUS ERRORS XML: ends with STATUS, the exit status of a suite that compared with
# recorded.txt. If the suite could not decide, because others used the machine in every round, this script
# reports CASE as skipped, for report_tests.py. ERRORS is a file with the suite's standard error, XML the
# file of results. A caller that has more to check does so before.
set -euo pipefail
case=$1 status=$2 errors=$3 xml=$4
# suite.cc says so at the start of the message. A message about a figure that is missing starts otherwise.
reason=$(sed -n 's/^[a-z]*_bench: \(undecided: [^<>&"]*\)$/\1/p' "$errors")
if [[ $status -eq 3 && -n $reason ]]; then
  echo "skipped: $case: $reason"
  cat >"$xml" <<END
<testsuites><testsuite name="${case%.*}">
<testcase classname="${case%.*}" name="${case#*.}" result="skipped">
<skipped message="$reason"/>
</testcase></testsuite></testsuites>
END
fi
exit "$status"
