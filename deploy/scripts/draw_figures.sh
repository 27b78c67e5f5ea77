#!/usr/bin/env bash
# draw_figures.sh [--check]
# Draws the figures of the documents. lib/figures/figures.pic has each after a line "# figure NAME", and NAME.svg beside
# it is what dpic (package of the same name) draws. The ink follows the reader's light or dark background.
# --check changes nothing and lists the figures that are not drawn from their present text.
set -euo pipefail
cd "$(dirname "$0")/../../lib/figures"

readonly style='<style>svg{color:#1f2328}@media(prefers-color-scheme:dark){svg{color:#d1d7e0}}</style>'

# draw NAME
draw() {
  { echo .PS && awk -v name="$1" '/^# figure / { inside = $3 == name } inside' figures.pic && echo .PE; } | dpic -v |
    sed -e 's/"black"/"currentColor"/g' -e "s|^<g>|$style\n<g>|" -e 's/font-size="11pt"/font-size="10pt" font-family="sans-serif"/'
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
stale=0
while read -r name; do
  draw "$name" >"$work/drawn"
  if [[ ${1:-} != --check ]]; then
    cp "$work/drawn" "$name.svg"
  elif ! cmp -s "$work/drawn" "$name.svg"; then
    echo "lib/figures/$name.svg is not what figures.pic draws: run deploy/scripts/draw_figures.sh" >&2
    stale=1
  fi
done < <(sed -n 's/^# figure //p' figures.pic)
exit "$stale"
