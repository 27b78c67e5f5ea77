#!/usr/bin/env bash
# lint.sh [--changed | FILES]: clang-tidy over FILES; without FILES over all our sources, after the
# style checks, clang-format and shellcheck. Flags are the same for every file, so no compilation
# database is needed; only the generated protobuf headers must be there.
#   --changed  over what differs from the branch that this one left ($BATON_LINT_BASE, else
#              origin/HEAD, else main), or, on that branch itself, from the commit before. For a
#              header: over the source beside it.
# A file in which nothing was found is not looked at again before it, a header of ours that it
# includes, any message, or this script changes: ~/.cache/baton-lint has a mark for each.
# BATON_LINT_AT_MOST: leaves out all files but so many, and says so.
# BATON_GENERATED: where the generated headers are. By default they are built.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."

# changed_files: prints the C++ files that differ, new ones included.
changed_files() {
  local candidate base=''
  for candidate in "${BATON_LINT_BASE:-origin/HEAD}" main; do
    base=$(git merge-base HEAD "$candidate" 2>/dev/null) && break
  done
  if [[ -z $base || $base == $(git rev-parse HEAD) ]]; then base=HEAD~1; fi
  git diff --name-only --diff-filter=d "$base" -- '*.cc' '*.h'
  git ls-files --others --exclude-standard -- '*.cc' '*.h'
}

if [[ $# -eq 0 ]]; then
  for check in check_style check_format check_shell; do tests/style/check.sh "$check"; done
  mapfile -t files < <(deploy/scripts/source_files.sh '*.cc')
elif [[ $1 == --changed ]]; then
  changed=$(changed_files)
  mapfile -t files < <(while read -r file; do
    if [[ $file == *.h && -f ${file%.h}.cc ]]; then file=${file%.h}.cc; fi
    [[ -z $file ]] || echo "$file"
  done <<<"$changed" | sort -u)
else
  files=("$@")
fi

if [[ -z ${BATON_GENERATED:-} ]]; then
  echo "--- Generating headers" >&2
  bazel build --config=run //proto:generated_code
  BATON_GENERATED=$(bazel info bazel-bin 2>/dev/null)
fi
if [[ ${#files[@]} -gt ${BATON_LINT_AT_MOST:-${#files[@]}} ]]; then
  echo "--- ${#files[@]} files have changed: ./run lint --changed looks at those after ${files[BATON_LINT_AT_MOST - 1]}, too" >&2
  files=("${files[@]::BATON_LINT_AT_MOST}")
fi
echo "--- clang-tidy over ${#files[@]} files" >&2
[[ ${#files[@]} -gt 0 ]] || exit 0

marks=${HOME:-${TEST_TMPDIR:?}}/.cache/baton-lint  # Bazel gives tests no HOME
mkdir -p "$marks"
# What else than a file and its headers decides what is found in it.
rules=$({ clang-tidy --version
  git ls-files -z '*.proto' '*.clang-tidy' deploy/scripts/{lint.sh,tidy_scope.cc} | xargs -0 sha256sum
} | sha256sum | cut -d ' ' -f 1)
scope=$marks/$rules.so
export llvm=/usr/lib/llvm-14
[[ -e $scope ]] || {
  "$llvm/bin/clang++" -std=c++17 -fno-rtti -fPIC -shared -isystem "$llvm/include" -o "$scope.$$" \
    deploy/scripts/tidy_scope.cc
  mv "$scope.$$" "$scope"
}

# tidy GENERATED MARKS RULES SCOPE FILE
tidy() {
  # A header is C++, too.
  local flags=(-x c++ -std=c++20 -I. -Iworker/kit/include -Itests/kit/include -isystem "$1" -isystem /usr/include/libnl3
    -isystem "$llvm/include" -DSPDLOG_COMPILED_LIB -DSPDLOG_FMT_EXTERNAL -DBOOST_ASIO_NO_DEPRECATED) mark
  [[ $5 != tests/* ]] || flags+=(-DBATON_TEST_HOOKS)  # tests see the hooks of what they test
  # A program that is built several times, each time with another value.
  case $5 in
    tests/fuzz/fuzzer_main.cc) flags+=(-DBATON_FUZZ_TARGET=SoftWire) ;;
    worker/examples/*/main.cc) flags+=(-DLEDGER_VERSION=1 -DNVMED_VERSION=1 -DPINGD_VERSION=1) ;;
  esac
  mark=$2/$({ echo "$3"
    clang++-14 -MM "${flags[@]}" "$5" | sed -e 's/^[^ ]*: //' -e 's/\\$//' | xargs sha256sum; } |
    sha256sum | cut -d ' ' -f 1)
  [[ ! -e $mark ]] || return 0
  echo "  $5" >&2
  clang-tidy --load="$4" --quiet "$5" -- "${flags[@]}" 2> >(grep -v ' warnings\? generated' >&2)
  touch "$mark"
}
export -f tidy
printf '%s\0' "${files[@]}" | xargs -0 -P2 -I{} \
  bash -euo pipefail -c 'tidy "$@"' tidy "$BATON_GENERATED" "$marks" "$rules" "$scope" {}
