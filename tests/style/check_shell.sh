#!/usr/bin/env bash
# The shell scripts are as shellcheck wants them.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."
deploy/scripts/source_files.sh run '*.sh' .ci/run | xargs -P2 -n16 shellcheck -x
