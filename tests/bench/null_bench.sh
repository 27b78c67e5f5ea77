#!/usr/bin/env bash
# null_bench.sh BENCHMARK RECORDED: Baton's own part of the data path is not twice as slow as recorded.
set -euo pipefail
exec "$1" --rounds 5 --scale 0.1 --recorded "$2"
