#!/usr/bin/env bash
# A driver is killed at every one of 1,000 consecutive instructions on Soft-RoCE, single-stepped, from
# the start of its loop's turn and of its recovery, and from places further on in both: 0 lost, 0
# repeated, 0 reordered. Then the controls: 300 kills beside a post, with a recovery that is right,
# one that posts everything again, and one that posts nothing again; the harm is what is predicted.
# BATON_NATIVE_STEPS, BATON_NATIVE_KILLS and BATON_NATIVE_SEED are the tests'.
set -euo pipefail
deploy/scripts/install_packages.sh vm
names=(steps_test controls_test always_reposting_test never_reposting_test)
bazel build --config=run "${names[@]/#///tests/native:}"
bin=$(bazel info bazel-bin 2>/dev/null)/tests/native

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cat >"$work/steps.sh" <<'END'
export BATON_NATIVE_STEPS=$1 BATON_NATIVE_STRIDE=1 BATON_NATIVE_KILLS=$2
[[ -z $3 ]] || export BATON_NATIVE_SEED=$3
status=0
for test in "${@:4}"; do "$test" || status=1; done
exit "$status"
END
./run vm --timeout 14400 "$work/steps.sh" "${BATON_NATIVE_STEPS:-1000}" \
  "${BATON_NATIVE_KILLS:-300}" "${BATON_NATIVE_SEED:-}" "${names[@]/#/$bin/}"
