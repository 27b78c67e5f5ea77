#!/usr/bin/env bash
# corpus_test.sh NAME...: corpus.sh keeps what it is given, adds one input without touching others, and makes the same
# bytes of the same inputs, in this tree's archive too. That has the inputs of each NAME and of nobody else.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp tests/fuzz/corpus.sh "$work"
cp -L tests/fuzz/corpus.tar "$work"
cp -L tests/fuzz/corpus.tar "$work/before"
corpus() { "$work/corpus.sh" "$@"; }

diff <(tar --list --file "$work/before" | cut -d/ -f1 | sort -u) <(printf '%s\n' "$@" | sort)
corpus unpack "$1" "$work/$1"
corpus pack "$1" "$work/$1"
cmp "$work/before" "$work/corpus.tar"

printf 'abc' >"$work/b input"
: >"$work/empty"
corpus add new "$work/b input" "$work/empty"
[[ $(corpus list new) == $'3 b input\n0 empty' ]]
printf 'abcd' >"$work/a"
corpus add new "$work/a"
[[ $(corpus list new | wc -l) -eq 3 && $(corpus list new | head -n 1) == '4 a' ]]
corpus unpack new "$work/unpacked"
cmp "$work/unpacked/b input" "$work/b input"
rm "$work/unpacked/a"
corpus pack new "$work/unpacked"
[[ $(corpus list new | wc -l) -eq 2 ]]
for name in "$@"; do
  diff <(tar --list --verbose --file "$work/before" "$name") <(tar --list --verbose --file "$work/corpus.tar" "$name")
done
echo "$# targets"
