#!/usr/bin/env bash
# The model of the handover has no wrong state, in larger sizes too, and all its mutants are caught.
set -euo pipefail
tests/model/check.sh deep
