#!/usr/bin/env bash
# format.sh [--check]: clang-format over the tracked C++; --check changes nothing and fails when a
# file would change.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."
mode=(-i)
if [[ ${1:-} == --check ]]; then mode=(--dry-run --Werror); fi
deploy/scripts/source_files.sh '*.h' '*.cc' | xargs -r -P2 -n16 clang-format "${mode[@]}"
