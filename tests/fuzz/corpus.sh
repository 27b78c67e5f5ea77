#!/usr/bin/env bash
# corpus.sh list NAME               prints size and name of each input of the fuzz target NAME
# corpus.sh add NAME FILE...        adds inputs, each under its file's name
# corpus.sh unpack NAME DIRECTORY   has each input as a file in DIRECTORY
# corpus.sh pack NAME DIRECTORY     keeps the files of DIRECTORY, and no others, as the inputs of NAME
# The inputs of all targets are one archive, tests/fuzz/corpus.tar, with a folder for each. The same inputs give the
# same bytes. Those whose names are not twelve hexadecimal digits are what somebody has thought of.
set -euo pipefail

usage() { sed -n '2,5s/^# //p' "$0" >&2; exit 2; }
[[ $# -ge 2 ]] || usage
command=$1
name=$2
shift 2
archive=$(dirname "$(readlink -f "$0")")/corpus.tar
all=$(mktemp -d)
trap 'rm -rf "$all"' EXIT

# Makes the archive of the files in $all.
write_archive() {
  tar --create --file "$archive.new" --format=ustar --mtime=@0 --owner=0 --group=0 --numeric-owner \
    --mode=0644 --no-recursion --directory "$all" --null \
    --files-from <(cd "$all" && find . -type f -printf "%P\0" | LC_ALL=C sort -z)
  mv "$archive.new" "$archive"
}

# add FILE...
add() {
  tar --extract --file "$archive" --directory "$all"
  mkdir -p "$all/$name"
  cp -- "$@" "$all/$name"
  write_archive
}

# pack DIRECTORY
pack() {
  tar --extract --file "$archive" --directory "$all"
  rm -rf "${all:?}/$name"
  cp -R -- "$1" "$all/$name"
  write_archive
}

case $command in
  list)
    tar --list --verbose --full-time --file "$archive" "$name" | sed -E 's|^\S+ +\S+ +([0-9]+) \S+ \S+ [^/]*/|\1 |'
    ;;
  add) add "$@" ;;
  unpack) mkdir -p "$1" && tar --extract --file "$archive" --directory "$1" --strip-components 1 "$name" ;;
  pack) pack "$1" ;;
  *) usage ;;
esac
