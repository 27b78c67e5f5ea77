#!/usr/bin/env bash
# run_bars.sh [--list | NAME...]: the full-size checks, one executable tests/bars/NAME.sh each.
# Each finds the programs in the directory BATON_BIN and passes by exiting 0. A script whose second line begins
# with "Evidence" runs only when it is named. If it exits with 3 it has shown nothing, which is no failure, and this
# exits with 3, too, unless a bar has failed. (3 of another script is a failure: Bazel's, of a test.)
set -euo pipefail
cd "$(dirname "$0")/../.."
export BATON_BIN=$PWD/out/bin

is_evidence() { [[ $(sed -n 2p "tests/bars/$1.sh") == '# Evidence'* ]]; }
names=() bars=()
for script in tests/bars/*.sh; do
  [[ -x $script ]] || continue
  name=${script##*/}
  names+=("${name%.sh}")
  is_evidence "${name%.sh}" || bars+=("${name%.sh}")
done

if [[ ${1:-} == --list ]]; then
  for name in "${names[@]}"; do
    # The second line of a bar says what it shows.
    printf '%-24s %s\n' "$name" "$(sed -n '2s/^# *//p' "tests/bars/$name.sh")"
  done
  exit 0
fi
names=("${bars[@]}")
[[ $# -eq 0 ]] || names=("$@")

passed=0 not_shown=0
summary=()
for name in "${names[@]}"; do
  script=tests/bars/$name.sh
  if [[ ! -x $script ]]; then
    echo "run: no bar \"$name\"; ./run bars --list names them" >&2
    exit 1
  fi
  echo "--- Bar $name" >&2
  started=$SECONDS
  status=0
  "$script" || status=$?
  if [[ $status -eq 0 ]]; then
    passed=$((passed + 1))
    summary+=("$(printf 'passed  %5ds  %s' $((SECONDS - started)) "$name")")
  elif [[ $status -eq 3 ]] && is_evidence "$name"; then
    not_shown=$((not_shown + 1))
    summary+=("$(printf 'nothing %5ds  %s' $((SECONDS - started)) "$name")")
  else
    summary+=("$(printf 'FAILED  %5ds  %s' $((SECONDS - started)) "$name")")
  fi
done
failed=$((${#names[@]} - passed - not_shown))
[[ ${#summary[@]} -eq 0 ]] || printf '%s\n' "${summary[@]}"
echo "$passed passed, $failed failed$([[ $not_shown -eq 0 ]] || echo ", $not_shown have shown nothing")"
[[ $failed -eq 0 ]]
[[ $not_shown -eq 0 ]] || exit 3
