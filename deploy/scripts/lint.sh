#!/usr/bin/env bash
# lint.sh [FILES]: clang-tidy over FILES; without FILES over all our sources, after the style
# checks and shellcheck. Flags are the same for every file, so no compilation database is needed;
# only the generated protobuf headers must be there.
set -euo pipefail
cd "$(dirname "$0")/../.."

if [[ $# -eq 0 ]]; then
  tests/style/check_style.sh
  deploy/scripts/format.sh --check
  git ls-files -z -- run '*.sh' .ci/run | xargs -0 shellcheck -x
fi

echo "--- Generating headers" >&2
mapfile -t genrules < <(bazel query 'kind(genrule, //...)' 2>/dev/null)
bazel build --config=run -- "${genrules[@]}"
generated=$(bazel info bazel-bin 2>/dev/null)

if [[ $# -gt 0 ]]; then
  printf '%s\0' "$@"
else
  git ls-files -z -- '*.cc'
fi >"${TMPDIR:-/tmp}/baton-lint-files.$$"
trap 'rm -f "${TMPDIR:-/tmp}/baton-lint-files.$$"' EXIT
echo "--- clang-tidy over $(tr -dc '\0' <"${TMPDIR:-/tmp}/baton-lint-files.$$" | wc -c) files" >&2

tidy() {
  echo "  $2" >&2
  clang-tidy --quiet "$2" -- -std=c++20 -I. -isystem "$1" -isystem /usr/include/libnl3 \
    -DSPDLOG_COMPILED_LIB -DSPDLOG_FMT_EXTERNAL -DBOOST_ASIO_NO_DEPRECATED 2> >(grep -v ' warnings\? generated' >&2)
}
export -f tidy
xargs -0 -P2 -I{} bash -c 'tidy "$@"' tidy "$generated" {} <"${TMPDIR:-/tmp}/baton-lint-files.$$"
