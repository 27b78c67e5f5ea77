#!/usr/bin/env bash
# draw_figures.sh [--check]
# Draws each figure of the documents, NAME.pic, as NAME.svg beside it (dpic, package of the same name).
# The ink follows the reader's light or dark background. --check changes nothing and lists the
# figures that are not drawn from their present text.
set -euo pipefail
cd "$(dirname "$0")/../.."

readonly style='<style>svg{color:#1f2328}@media(prefers-color-scheme:dark){svg{color:#d1d7e0}}</style>'

draw() {
  { echo .PS && cat "$1" && echo .PE; } | dpic -v |
    sed -e 's/"black"/"currentColor"/g' -e "s|^<g>|$style\n<g>|" -e 's/font-size="11pt"/font-size="10pt" font-family="sans-serif"/'
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
stale=0
for figure in $(deploy/scripts/source_files.sh '*.pic'); do
  drawn=${figure%.pic}.svg
  draw "$figure" >"$work/drawn"
  if [[ ${1:-} != --check ]]; then
    cp "$work/drawn" "$drawn"
  elif ! cmp -s "$work/drawn" "$drawn"; then
    echo "$drawn is not what $figure draws: run deploy/scripts/draw_figures.sh" >&2
    stale=1
  fi
done
exit "$stale"
