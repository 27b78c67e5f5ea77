#!/usr/bin/env bash
# run_bars.sh [--list | NAME...]: the full-size checks, one executable tests/bars/NAME.sh each.
# Each finds the programs in the directory BATON_BIN and passes by exiting 0.
set -euo pipefail
cd "$(dirname "$0")/../.."
export BATON_BIN=$PWD/out/bin

names=()
for script in tests/bars/*.sh; do
  [[ -x $script ]] || continue
  name=${script##*/}
  names+=("${name%.sh}")
done

if [[ ${1:-} == --list ]]; then
  for name in "${names[@]}"; do
    # The second line of a bar says what it shows.
    printf '%-24s %s\n' "$name" "$(sed -n '2s/^# *//p' "tests/bars/$name.sh")"
  done
  exit 0
fi
[[ $# -eq 0 ]] || names=("$@")

passed=0
summary=()
for name in "${names[@]}"; do
  script=tests/bars/$name.sh
  if [[ ! -x $script ]]; then
    echo "run: no bar \"$name\"; ./run bars --list names them" >&2
    exit 1
  fi
  echo "--- Bar $name" >&2
  started=$SECONDS
  if "$script"; then
    passed=$((passed + 1))
    summary+=("$(printf 'passed  %5ds  %s' $((SECONDS - started)) "$name")")
  else
    summary+=("$(printf 'FAILED  %5ds  %s' $((SECONDS - started)) "$name")")
  fi
done
[[ ${#summary[@]} -eq 0 ]] || printf '%s\n' "${summary[@]}"
echo "$passed passed, $((${#names[@]} - passed)) failed"
[[ $passed -eq ${#names[@]} ]]
