#!/usr/bin/env bash
# corpus.sh list NAME               prints size and name of each input of the fuzz target NAME
# corpus.sh add NAME FILE...        adds inputs, each under its file's name
# corpus.sh unpack NAME DIRECTORY   has each input as a file in DIRECTORY
# corpus.sh pack NAME DIRECTORY     keeps the files of DIRECTORY, and no others, as the inputs of NAME
# The inputs of a target are one archive, tests/fuzz/corpus/NAME.tar. The same inputs give the same bytes.
# Those whose names are not twelve hexadecimal digits are what somebody has thought of.
set -euo pipefail

usage() { sed -n '2,5s/^# //p' "$0" >&2; exit 2; }
[[ $# -ge 2 ]] || usage
command=$1
archive=$(dirname "$(readlink -f "$0")")/corpus/$2.tar
shift 2

pack() {
  tar --create --file "$archive.new" --format=ustar --mtime=@0 --owner=0 --group=0 --numeric-owner \
    --mode=0644 --no-recursion --directory "$1" --null --files-from <(cd "$1" && find . -type f -printf "%P\0" | LC_ALL=C sort -z)
  mv "$archive.new" "$archive"
}

# add FILE...
add() {
  local unpacked
  unpacked=$(mktemp -d)
  [[ ! -e $archive ]] || tar --extract --file "$archive" --directory "$unpacked"
  cp -- "$@" "$unpacked"
  pack "$unpacked"
  rm -rf "$unpacked"
}

case $command in
  list) tar --list --verbose --full-time --file "$archive" | sed -E 's/^\S+ +\S+ +([0-9]+) \S+ \S+ /\1 /' ;;
  add) add "$@" ;;
  unpack) mkdir -p "$1" && tar --extract --file "$archive" --directory "$1" ;;
  pack) pack "$1" ;;
  *) usage ;;
esac
