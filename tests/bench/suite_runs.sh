#!/usr/bin/env bash
# suite_runs.sh BENCHMARK NAME [ARGUMENTS]: a suite runs, reduced, and leaves a figure for everything
# that it is to measure, and its plots. How large they are is not judged here.
set -euo pipefail
benchmark=$1 name=$2
shift 2
output=$(mktemp -d)
trap 'rm -rf "$output"' EXIT

"$benchmark" --rounds 1 --scale 0.01 --output "$output" "$@"
json=$(<"$output/$name.json")
if zero=$(grep -oE '"[^"]*":\{"value":0[,}]' <<<"$json"); then
  echo "nothing was measured of: $zero" >&2
  exit 1
fi
grep -q '"figures":{"[^}]*"value":' <<<"$json" || { echo "no figures in $json" >&2 && exit 1; }
pictures=("$output"/*.svg)
[[ -s ${pictures[0]} ]] || { echo "no picture" >&2 && exit 1; }
