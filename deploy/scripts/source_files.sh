#!/usr/bin/env bash
# source_files.sh PATTERN...: prints the files of this tree that git tracks and whose paths match, one
# a line. In a copy without its history: all whose names match.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."
if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
  exec git ls-files -- "$@"
fi
for pattern in "$@"; do
  find . -path ./out -prune -o -name "$pattern" -printf '%P\n'
done
