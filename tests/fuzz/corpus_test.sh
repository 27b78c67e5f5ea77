#!/usr/bin/env bash
# corpus_test.sh ARCHIVE...: corpus.sh keeps what it is given, adds one input without touching others, and makes the same bytes of the same
# inputs, in this tree's archives too.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp tests/fuzz/corpus.sh "$work"
mkdir "$work/corpus"
cp "$@" "$work/corpus"
corpus() { "$work/corpus.sh" "$@"; }

archives=0
for archive in "$work"/corpus/*.tar; do
  name=$(basename "$archive" .tar)
  cp "$archive" "$work/before"
  corpus unpack "$name" "$work/$name"
  corpus pack "$name" "$work/$name"
  cmp "$work/before" "$archive"
  archives=$((archives + 1))
done
[[ $archives -gt 0 ]]

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
echo "$archives archives"
