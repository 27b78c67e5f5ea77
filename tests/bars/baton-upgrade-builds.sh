#!/usr/bin/env bash
# Upgrades of Baton between this build and one of another commit, both directions: driver and worker are of the one,
# keeper, control and batond go to the other, on to this one under a third name, and back. baton_upgrade_test's other
# cases run with both, too. BATON_OTHER_COMMIT: the other one; the commit 30 before this.
set -euo pipefail
commit=$(git rev-parse --verify "${BATON_OTHER_COMMIT:-HEAD~30}^{commit}")
work=$(mktemp -d)
trap 'git worktree remove --force "$work/tree"; rm -rf "$work"' EXIT
git worktree add --quiet --detach "$work/tree" "$commit"
mapfile -t labels < <(deploy/scripts/collect_binaries.sh --labels)
(
  cd "$work/tree"
  bazel build --config=run "${labels[@]}"
  deploy/scripts/collect_binaries.sh "$work/other"
  bazel shutdown
)
bazel build --config=run "${labels[@]}" //tests/system:baton_upgrade_test
deploy/scripts/collect_binaries.sh out/bin
test=$(bazel info bazel-bin 2>/dev/null)/tests/system/baton_upgrade_test
cmp -s "$work/other/baton-keeper" out/bin/baton-keeper && { echo "the builds do not differ" >&2; exit 1; }
echo "--- driver and worker of this build"
BATON_BIN=$PWD/out/bin BATON_OTHER_BIN=$work/other "$test"
echo "--- driver and worker of ${commit:0:8}"
BATON_BIN=$work/other BATON_OTHER_BIN=$PWD/out/bin "$test"
