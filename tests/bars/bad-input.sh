#!/usr/bin/env bash
# Bad input and exhausted limits: each ends in an error that names the cause and the cure.
set -euo pipefail
bazel test --config=run --nocache_test_results --test_output=errors \
  //tests/supervisor/... //tests/system:limits_test //tests/lib/driver/... //tests/lib:message_channel_test \
  //tests/worker:all
