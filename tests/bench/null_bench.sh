#!/usr/bin/env bash
# null_bench.sh BENCHMARK RECORDED: Baton's own part of the data path is not worse than recorded.
set -euo pipefail
errors=$TEST_TMPDIR/errors
status=0
"$1" --rounds 5 --scale 0.1 --recorded "$2" 2>"$errors" || status=$?
cat "$errors" >&2
exec tests/bench/end_as_measured.sh RecordedRatios.null "$status" "$errors" "${XML_OUTPUT_FILE:-/dev/null}"
