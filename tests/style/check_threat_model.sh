#!/usr/bin/env bash
# check_threat_model.sh [PAGE]: every claim of the threat model has a test, and what it cites is there. In a
# table that begins with "| Cannot |" each row has, in its last column, `tests/path/of/file`, then
# `Suite.case` or "words" that are in that file, any number of them, and maybe another file. Prints one line
# for each fault, and at the end how many claims there are.
set -euo pipefail
page=${1:+$(readlink -f "$1")}
cd "$(dirname "$(readlink -f "$0")")/../.."
export LC_ALL=C.UTF-8
page=${page:-$PWD/deploy/threat_model.md}

faults=0
fault() {
  echo "$page:$number: $1"
  faults=$((faults + 1))
}

# Whether Bazel builds or runs the file: a rule of its package names it, in full or in part.
is_run() {
  local name=${1##*/} package=${1%/*}
  local stem=${name%.*}
  while [[ ! -f $package/BUILD.bazel && $package == */* ]]; do package=${package%/*}; done
  grep -qE "\"([a-z_]+/)*(${stem%_test}|$stem|${name//./\\.})\"" "$package/BUILD.bazel"
}
check_file() {
  if [[ ! -f $1 ]]; then
    fault "there is no file $1"
  elif ! is_run "$1"; then
    fault "no rule beside $1 names it"
  else
    return 0
  fi
  return 1
}
# Of a macro that clang-format has put on two lines, too.
has_case() {
  # Not grep -q: it leaves early, and pipefail takes that for a failure.
  [[ $(tr -s ' \n' ' ' <"$1" | grep -cE "\bTEST(_F|_P)?\( ?${2%.*}, ${2#*.}\)") -gt 0 ]]
}

# check_column TEXT: the last column of a row.
# shellcheck disable=SC2016  # Markdown's quotes, not the shell's
check_column() {
  local file='' cited=0 item
  while IFS= read -r item; do
    case $item in
      '`tests/'*)
        [[ -z $file || $cited -gt 0 ]] || fault "nothing of $file is cited"
        file=${item//\`/} cited=0
        check_file "$file" || return 0
        ;;
      \`*.*\`)
        item=${item//\`/} cited=1
        [[ -n $file ]] || { fault "$item comes before a file" && return 0; }
        has_case "$file" "$item" || fault "$file has no case $item"
        ;;
      \"*)
        item=${item:1:-1} cited=1
        [[ -n $file ]] || { fault "\"$item\" comes before a file" && return 0; }
        grep -qF -- "$item" "$file" || fault "$file does not say \"$item\""
        ;;
    esac
  done < <(grep -oE '`[^`]+`|"[^"]+"' <<<"$1" || true)
  [[ $cited -gt 0 ]] || fault "a claim without a test"
}

number=0 claims=0 in_claims=false
while IFS= read -r line; do
  number=$((number + 1))
  case $line in
    '| Cannot |'*) in_claims=true ;;
    *'| Test |') fault "a table of tests that does not begin with Cannot" ;;
    '|---'*) ;;
    '| '*' |')
      $in_claims || continue
      claims=$((claims + 1))
      column=${line% |}
      check_column "${column##*| }"
      ;;
    '') in_claims=false ;;
    '|'*) fault "a row that does not end" ;;
  esac
done <"$page"

number=0
[[ $claims -gt 0 ]] || fault "no claims"
# Other files of this tree that it names.
# shellcheck disable=SC2016
while IFS= read -r file; do
  [[ -e $file ]] || fault "there is no file $file"
done < <(grep -oE '`(deploy|lib|proto|supervisor|worker)/[^` ]+`' "$page" | tr -d \` || true)
echo "$claims claims, $faults faults"
[[ $faults -eq 0 ]]
