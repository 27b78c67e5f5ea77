#!/usr/bin/env bash
# The fuzzers find each defect of tests/fuzz/BUILD.bazel in 10 minutes.
set -euo pipefail
exec ./run fuzz --mutants --seconds 600
