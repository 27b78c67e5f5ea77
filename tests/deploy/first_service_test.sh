#!/usr/bin/env bash
# first_service_test.sh PAGE PROGRAM...: types the commands of PAGE that follow `<!-- tested: try -->`, in a place where
# out/bin has the PROGRAMs, and looks whether the peer has lost anything.
# In namespaces of its own: the commands have fixed ports and places, and find processes by name.
set -euo pipefail

# shellcheck source=tests/harness/skip.sh
source tests/harness/skip.sh
skip_this() { skip FirstServiceTest shouldDoWhatThePageSays "$1"; }

if [[ $1 != --inside ]]; then
  [[ $(id -u) -eq 0 ]] || skip_this "it needs root, for namespaces"
  unshare --mount --net --pid --fork true 2>/dev/null || skip_this "namespaces cannot be made (no CAP_SYS_ADMIN)"
  exec unshare --mount --net --pid --fork --kill-child --mount-proc -- "$0" --inside "$@"
fi
shift

page=$(realpath "$1")
shift
mount -t tmpfs none /run
ip link set lo up
work=$(mktemp -d)
mount -t tmpfs none "$work"
mkdir -p "$work/out/bin"
cp "$@" "$work/out/bin"
cd "$work"

# The commands have no other way to be told how long a peer is to go on.
mapfile -t commands < <(awk '/^<!-- tested: try -->$/ { found = 1; next } !found || /^$/ { next }
  !/^    / { exit } { print substr($0, 5) }' "$page" | sed 's/--duration 60/--duration 20/')
[[ ${#commands[@]} -ge 8 ]] || { echo "${page##*/}: ${#commands[@]} commands after the mark: this test is broken" >&2; exit 1; }

# A person types slower than programs start.
type_until_it_works() {
  local i
  for ((i = 0; i < 100; ++i)); do
    if bash -c "$1" >"$work/said" 2>&1; then
      cat "$work/said"
      return
    fi
    sleep 0.2
  done
  cat "$work/said" "$work"/background.* >&2
  echo "${page##*/}: this does not work: $1" >&2
  exit 1
}

background=()
for command in "${commands[@]}"; do
  printf '$ %s\n' "$command"
  case $command in
    './run build') ;;
    *'&' | *'& sleep 1')
      command=${command% sleep 1}
      name=${command%% *}
      until [[ $name != */ledger-* && $name != */baton-peer || -S /run/baton/ledger.sock ]]; do sleep 0.1; done
      bash -c "exec ${command%&}" </dev/null >"$work/background.${#background[@]}" 2>&1 &
      background+=($!)
      if [[ $name == */baton-peer ]]; then peer=$! report=$work/background.$((${#background[@]} - 1)); fi
      ;;
    *) type_until_it_works "$command" ;;
  esac
done

status=0
wait "$peer" || status=$?
cat "$report"
for count in lost duplicated reordered corrupt disconnects; do
  grep -q "\b$count 0\b" "$report" || { echo "${page##*/}: the peer does not say $count: 0" >&2; status=1; }
done
exit "$status"
