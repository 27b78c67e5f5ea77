#!/usr/bin/env bash
# guide_commands_test.sh GUIDE PROGRAM...: types the commands of worker/guide.md that follow `<!-- tested: guide -->`,
# and looks for what the page tells its readers to expect. PROGRAMs of the examples are found where Bazel has built
# them, all others in out/bin.
# In namespaces of its own: the commands have fixed ports and places, and find processes by name.
set -euo pipefail

# shellcheck source=tests/harness/skip.sh
source tests/harness/skip.sh
skip_this() { skip GuideCommandsTest shouldDoWhatThePageSays "$1"; }

if [[ $1 != --inside ]]; then
  [[ $(id -u) -eq 0 ]] || skip_this "it needs root, for namespaces"
  unshare --mount --net --pid --fork true 2>/dev/null || skip_this "namespaces cannot be made (no CAP_SYS_ADMIN)"
  exec unshare --mount --net --pid --fork --kill-child --mount-proc -- "$0" --inside "$@"
fi
mount -t tmpfs none /run
work=/run/guide
mkdir -p "$work/out/bin"
# The tree may lie in /tmp.
page=$work/guide.md
cp "$2" "$page"
shift 2
examples=$work/examples
for program in "$@"; do
  folder=out/bin
  [[ $program != worker/examples/* ]] || folder=examples/$(basename "$(dirname "$program")")
  mkdir -p "$work/$folder"
  cp "$program" "$work/$folder"
done
mount -t tmpfs none /tmp
ip link set lo up
cd "$work"
# The commands use these.
# shellcheck disable=SC2034
guide=$examples/guide
export BATON_SOCKET=/tmp/guide/operator.sock

fail() {
  cat "$work/said" >&2
  echo "guide.md: $1" >&2
  exit 1
}

# wait_for WHAT COMMAND...: a person types slower than programs start.
wait_for() {
  local what=$1 i
  shift
  for ((i = 0; i < 600; ++i)); do
    if "$@"; then return; fi
    sleep 0.1
  done
  fail "waited in vain for $what"
}
listens() { grep -qi "^ *[0-9]*: [0-9A-F]*:$(printf '%04X' "$1") 00000000:0000 0A" /proc/net/tcp; }

stands_by() { [[ $(out/bin/baton worker list counter -o json | grep -c '"WORKER_STATE_READY"') -ge 2 ]]; }
watches() { out/bin/baton upgrades list counter 2>/dev/null | grep watching >/dev/null; }

# What a command names has to be there before it is typed.
wait_for_what_it_names() {
  local name
  for name in $(grep -oE '/tmp/[a-z/-]+\.sock' <<<"$1" || true); do
    wait_for "$name" test -S "$name"
  done
  # Its reader has waited for two seconds, and seen it.
  [[ $1 != *'echo sick'* ]] || wait_for "the watch window" watches
  [[ $1 != *'baton handoff counter'* ]] || wait_for "a worker that stands by" stands_by
  [[ $1 == *guide/line* || $1 == *guide/pour* ]] || return 0
  name=$(grep -oE '127\.0\.0\.1:[0-9]+' <<<"$1" | head -n1)
  wait_for "$name" listens "${name#*:}"
}

# Clients and upgrades end by themselves; an upgrade that goes back has failed. The rest is ended.
clients=() upgrades=()
end_all() {
  local pid
  for pid in "${clients[@]}"; do wait "$pid" || fail "a client in the background failed"; done
  for pid in "${upgrades[@]}"; do wait "$pid" || true; done
  clients=() upgrades=()
  # shellcheck disable=SC2046  # one word for each
  kill $(jobs -p) 2>/dev/null || true
  wait
  rm -rf /tmp/guide /tmp/guide-chain
}

type_command() {
  local command=${1%%  #*} expected=0 status=0
  printf '$ %s\n' "$1"
  [[ $1 != *batond* ]] && wait_for_what_it_names "$command"
  if [[ $1 =~ '# refused'|'# error' ]]; then expected=1; fi
  eval "$command" >>"$work/said" 2>&1 </dev/null || status=$?
  [[ $status -eq $expected ]] || fail "status $status: $1"
  if [[ $command == *guide/line*'&' ]]; then clients+=($!); fi
  if [[ $command == *'baton upgrade'*'&' ]]; then upgrades+=($!); fi
}

# This test waits for what a command names, so it need not sleep as a reader does; and its clients ask for less long.
mapfile -t commands < <(awk '/^<!-- tested: guide -->$/ { block = 1; next } !block || /^$/ { next }
  !/^    / { block = 0; next } { print substr($0, 5) }' "$page" |
  sed -e ':again' -e '/\\$/ { N; s/\\\n *//; t again' -e '}' -e 's/:7480 20 /:7480 5 /' -e 's/ & sleep 1$/ \&/')
[[ ${#commands[@]} -ge 25 ]] || { echo "guide.md: ${#commands[@]} commands: this test is broken" >&2; exit 1; }
: >"$work/said"
for command in "${commands[@]}"; do
  [[ $command != *batond*--service\ counter* && $command != *--service\ echo* ]] || end_all
  type_command "$command"
done
end_all

expectations=(
  '^hello$'
  '^12, message 2 of shard 0$'
  'answers, none lost and none repeated; the longest took'
  'failed: the new program writes state version 2, the old one reads 1 to 1'
  'upgrade 3 of service counter: completed'
  '^red-hot$'
  '^1 allocated, 1 of 1 texts; kept [0-9]+ held [0-9]+ free [0-9]+ of 1048576$'
  'error: instead of an answer: disconnected'
  'is failed: 3 workers \(.*\) died on its receive 0'
  'rolled back: worker [0-9]+ says that it is unhealthy'
  '^[0-9]+ [0-9]+$'
  '^1 [0-9]+ [0-9]+$'
  '^freed$'
  '^[05] of 12$'
  '^2000 messages with [0-9]+ bytes, all counted$'
  '^record 1$'
  '^b +$'
  'worker 1 of service counter was sent SIGKILL'
  '^hello at tick [0-9]+$'
  '^2 from Ada$'
  'worker 1 of service counter has ended'
)
for expected in "${expectations[@]}"; do
  grep -qE "$expected" "$work/said" || fail "nobody said: $expected"
done
echo "${#commands[@]} commands, ${#expectations[@]} expectations"
