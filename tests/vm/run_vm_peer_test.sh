#!/usr/bin/env bash
# run_vm.sh with a peer: what is told of one that fails, and the end of one that goes on. Nothing here depends on how
# long a machine takes.
set -euo pipefail

die() { echo "run_vm_peer_test: $*" >&2; exit 1; }
# Bazel's home for tests is not the user's, who has the kernel.
HOME=$(getent passwd "$(id -u)" | cut -d: -f6)
export HOME
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# A peer that fails is told of; the first one's status counts.
cat >"$work/peer.sh" <<'END'
echo said
echo complained >&2
exit 3
END
# shellcheck disable=SC2016  # expanded in the machine
echo 'until [[ -e $BATON_VM_RESULTS/peer-has-ended ]]; do sleep 0.2; done' >"$work/first.sh"
mkdir "$work/tmp"
TMPDIR=$work/tmp deploy/vm/run_vm.sh --peer "$work/peer.sh" "$work/first.sh" >"$work/out" 2>"$work/errors" &
pair=$!
# The two directories are those that run_vm.sh shares with its machines.
until [[ -n $(cat "$work"/tmp/*/peer/status 2>/dev/null) ]]; do
  kill -0 "$pair" 2>/dev/null || die "it ended before the peer did: $(cat "$work/errors")"
  sleep 0.2
done
touch "$(echo "$work"/tmp/*/first/results)/peer-has-ended"
wait "$pair" || die "exit status $? with a peer that fails: $(cat "$work/errors")"
[[ $(<"$work/out") == "peer: said" ]] || die "with a peer: $(<"$work/out")"
grep -qx 'peer: complained' "$work/errors" || die "the peer's standard error: $(<"$work/errors")"
grep -qx "vm: the peer's script ended with exit status 3" "$work/errors" ||
  die "the peer's end was not said: $(<"$work/errors")"

# One that goes on is ended with the first one.
echo 'sleep infinity' >"$work/peer.sh"
echo 'echo up' >"$work/up.sh"
timeout 120 deploy/vm/run_vm.sh --peer "$work/peer.sh" "$work/up.sh" >"$work/out" ||
  die "exit status $? with a peer that goes on"
[[ $(<"$work/out") == up ]] || die "with a peer that goes on: $(<"$work/out")"
echo "a peer ends with the first machine, and what it says and how it ends is told"
