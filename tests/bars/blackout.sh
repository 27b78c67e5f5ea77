#!/usr/bin/env bash
# The whole demonstration: nothing lost, and the median blackouts of handoffs, upgrades and hot
# crashes at most 1/5 of the baseline's gap.
set -euo pipefail
bazel build --config=run //tests/demo:demo
"$(bazel info bazel-bin 2>/dev/null)/tests/demo/demo" --require-ratio 5 --output out/bars/blackout
