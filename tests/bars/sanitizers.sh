#!/usr/bin/env bash
# Unit tests are clean under AddressSanitizer with UBSan and under ThreadSanitizer.
set -euo pipefail
./run asan
./run tsan
