#!/usr/bin/env bash
# Nothing is installed that nothing uses: of each library to build with (a -dev package of
# deploy/scripts/install_packages.sh) some source includes a header, and each target of lib/system is
# a dependency of another. Prints one line for each that is not.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."
export LC_ALL=C.UTF-8
faults=0
fault() {
  echo "$1"
  faults=$((faults + 1))
}

# headers PACKAGE...: as sources name them.
headers() {
  dpkg -L "$@" |
    sed -nE 's#^/usr/(lib/llvm-14/)?include/((x86_64|aarch64)-linux-gnu/|libnl3/|llvm-14/)?([^ ]+\.(h|hpp))$#\4#p'
}
included=$(deploy/scripts/source_files.sh '*.h' '*.cc' |
  xargs sed -nE 's/^#include [<"]([^>"]+)[>"].*/\1/p' | sort -u)
packages=0
while read -r package; do
  packages=$((packages + 1))
  found=$(headers "$package")
  if [[ -z $found ]]; then  # it stands for another, of the default version
    needed=$(dpkg-query -W -f='${Depends}' "$package" | sed -E 's/[ ,].*//')
    found=$(headers "$needed")
  fi
  grep -qxF -f <(sort -u <<<"$found") <<<"$included" ||
    fault "deploy/scripts/install_packages.sh: $package: no source includes a header of it"
done < <(grep -oE '[a-z0-9+.-]+-dev\b' deploy/scripts/install_packages.sh |
  # A program, and the runtime of the fuzzers.
  grep -vxE 'dpkg-dev|libclang-rt-.*' | sort -u)

targets=0
while read -r target; do
  targets=$((targets + 1))
  deploy/scripts/source_files.sh '*BUILD.bazel' '*.bzl' |
    xargs grep -qE "\"(//lib/system)?:$target\"" || fault "//lib/system:$target: nothing depends on it"
done < <(sed -nE 's/^    name = "(.*)",$/\1/p' lib/system/BUILD.bazel)

[[ $packages -ge 10 && $targets -ge 10 ]] || fault "$packages packages, $targets targets: this check is broken"
echo "$packages packages, $targets targets, $faults faults"
[[ $faults -eq 0 ]]
