#!/usr/bin/env bash
# bench_suites.sh: the suites of the benchmark, by their targets in tests/bench.
set -euo pipefail
cd "$(dirname "$0")/../.."
sed -n 's/^    name = "\([a-z]*\)_bench",$/\1/p' tests/bench/BUILD.bazel | paste -sd' '
