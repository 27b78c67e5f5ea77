#!/usr/bin/env bash
# What deploy/runbook.md tells people to look for is there: each `word_with_underscores` is an event that some
# source tells of, a field of the protocol or a metric; each alert is in the rules; each page exists. Prints
# one line for each that is not.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."
page=deploy/runbook.md
faults=0
fault() {
  echo "$page: $1"
  faults=$((faults + 1))
}
words() { grep -oE "\`$1\`" "$page" | tr -d "\`" | sort -u; }

kinds=0
while read -r word; do
  kinds=$((kinds + 1))
  grep -rqF --include='*.cc' --include='*.h' "\"$word\"" supervisor lib ||
    grep -rqE --include='*.proto' "\b$word = [0-9]+" proto ||
    fault "\`$word\`: nothing tells it"
done < <(words '[a-z]+(_[a-z]+)+')
while read -r alert; do
  grep -qx " *- alert: $alert" deploy/prometheus/baton-rules.yaml || fault "there is no alert $alert"
done < <(words 'Baton[A-Za-z]+')
while read -r file; do
  [[ -f $file ]] || fault "there is no $file"
done < <(words '(deploy|supervisor)/[a-z_/]+\.md')

[[ $kinds -ge 20 ]] || fault "only $kinds words were found: this check is broken"
echo "$kinds words, $faults faults"
[[ $faults -eq 0 ]]
