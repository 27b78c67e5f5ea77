#!/usr/bin/env bash
# ./run vm: from a warm cache to the script's first line in less than 10 seconds, the best of three.
set -euo pipefail
deploy/scripts/install_packages.sh vm

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
echo 'echo first; sleep infinity' >"$work/script.sh"
./run vm --timeout 1 "$work/script.sh" 2>/dev/null || true  # the kernel is there now

best=999999
for _ in 1 2 3; do
  begin=$(date +%s%3N)
  coproc machine { exec ./run vm --timeout 600 "$work/script.sh" 2>"$work/console"; }
  # shellcheck disable=SC2154  # coproc sets it
  output=${machine[0]}
  read -r line <&"$output" || true
  took=$(($(date +%s%3N) - begin))
  # shellcheck disable=SC2154
  pid=$machine_PID
  [[ $line == first ]] || { echo "vm: no line came: $(cat "$work/console")" >&2; exit 1; }
  kill "$pid"
  wait "$pid" || true
  echo "first line after $took ms"
  [[ $took -ge $best ]] || best=$took
done
[[ $best -lt 10000 ]]
