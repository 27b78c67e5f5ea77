#!/usr/bin/env bash
# kit_test.sh PACKAGE... LINE: a service written outside this tree. In a root that has the packages installed
# and nothing of this repository, the examples of libbaton-dev are built as its README says, in C, in C++ and
# in Python. One connection is then served by each of them in turn, after kills and a handoff; then by native
# workers from the same sources; another one by coroutines.
set -euo pipefail
case_name=shouldBuildAndServeOutsideTheTree
# shellcheck source=tests/worker/kit/kit_root.sh
source tests/worker/kit/kit_root.sh

inside cp -r /usr/share/doc/libbaton-dev/examples /tmp/project
inside sh -c 'cd /tmp/project && cmake -B build -DCMAKE_C_FLAGS="-Wall -Wextra -Werror -pedantic" \
  -DCMAKE_CXX_FLAGS="-Wall -Wextra -Werror -pedantic" && cmake --build build' \
  >"$work/cmake.log" 2>&1 || die "CMake does not build the examples"
# shellcheck disable=SC2016  # the inner shell's
inside sh -c 'cd /tmp/project && cc -o echo-pc echo.c $(pkg-config --cflags --libs baton)' \
  >"$work/cc.log" 2>&1 || die "cc does not build the example"
needed=$(inside sh -c 'objdump -p /tmp/project/echo-pc' | awk '$1 == "NEEDED" { print $2 }' | sort | xargs)
[[ $needed == "libbaton.so.0 libc.so.6" ]] || die "the program links more than libbaton: $needed"
inside sh -c 'echo "#include <baton/peer.h>" | cc -std=c11 -Wall -Wextra -Werror -pedantic -fsyntax-only -x c - &&
  /tmp/project/build/stream' >"$work/stream.log" 2>&1 || die "two peers without Baton do not send messages"
needed=$(inside sh -c 'objdump -p /usr/lib/*/libbaton-peer.so.0' | awk '$1 == "NEEDED" && /grpc|protobuf/')
[[ -z $needed ]] || die "libbaton-peer links more than it needs: $needed"
echo "built with CMake and pkg-config"
inside python3 -c '
import _ctypes
for _ in range(2):
    for library in "libbaton.so.0", "libbaton-testing.so.0":
        _ctypes.dlclose(_ctypes.dlopen(library, 2))' >"$work/dlopen.log" 2>&1 ||
  die "a program cannot have both libraries, or cannot open them again"

baton() { inside baton --socket "/tmp/$service/operator.sock" "$@"; }
# start_batond SERVICE [OPTION]...
start_batond() {
  service=$1
  inside /usr/libexec/baton/batond --dev --state-dir "/tmp/$service" --service echo "${@:2}" >"$work/batond-$service.log" 2>&1 &
  await "batond" grep -q '^batond ready' "$work/batond-$service.log"
}
workers() { baton worker list echo -o json; }
# worker VERSION: the id and the pid of the ready worker of that version.
worker() {
  workers | python3 -c '
import json, sys
for one in json.load(sys.stdin).get("workers", []):
    one = one["worker"]
    if one["version"] == sys.argv[1] and one["state"].endswith("READY"):
        print(one["id"], one["pid"])' "$1" | grep .
}
owner() {
  workers | python3 -c '
import json, sys
print([one["worker"]["version"] for one in json.load(sys.stdin)["workers"] if one["worker"]["shards"]][0])'
}
owned_by() { [[ $(owner) == "$1" ]]; }
# start VERSION COMMAND...
start() {
  inside "${@:2}" >"$work/worker-$1.log" 2>&1 &
  await "worker $1" worker "$1"
}
kill_worker() {
  local pid
  read -r _ pid < <(worker "$1")
  kill -KILL "$pid"
}
# ask WORD [ANSWER]: of the one connection, which sends the word back where no answer is given.
ask() {
  local answer
  echo "$1" >&"${peer[1]}"
  read -r -t 20 -u "${peer[0]}" answer || die "no answer to $1"
  [[ $answer == "${2:-$1}" ]] || die "$1 was answered: $answer"
}
# end: of the batond that runs, and of its peer.
end() {
  kill -TERM "$(pgrep -f "batond --dev --state-dir /tmp/$service ")" 2>/dev/null || true
  await "free port" sh -c "! ss -ltn | grep :7471"
  kill -KILL "$peer_process" 2>/dev/null || true
  wait "$peer_process" 2>/dev/null || true
}

shared="--shared-receive-queue-depth=64"
start_batond brokered "$shared"
start c /tmp/project/build/echo-c /tmp/brokered/echo.sock
coproc peer { inside /tmp/line 127.0.0.1:7471 2>"$work/peer.log"; }
peer_process=$!
ask one
start c++ /tmp/project/build/echo-cpp /tmp/brokered/echo.sock
kill_worker c
ask two
owned_by c++ || die "$(owner) answers after the worker in C was killed"
start python python3 /tmp/project/echo.py /tmp/brokered/echo.sock
read -r id _ < <(worker python)
baton handoff echo --to "$id" >"$work/handoff.log" 2>&1 || die "no handoff to Python"
ask three
owned_by python || die "$(owner) answers after a handoff to Python"
kill_worker c++
start c /tmp/project/echo-pc /tmp/brokered/echo.sock
kill_worker python
ask four
owned_by c || die "$(owner) answers after the worker in Python was killed"
echo "one connection, served by C, C++ and Python"
end

listens() { ss -ltn | grep ':7471 ' >/dev/null; }

owner_process() {
  workers | python3 -c '
import json, sys
print([one["worker"]["pid"] for one in json.load(sys.stdin)["workers"] if one["worker"]["shards"]][0])'
}
# serve_natively NAME WORD ANSWER WORD ANSWER [OPTION]...: native workers of NAME.so answer so, before a kill and
# after it.
serve_natively() {
  start_batond "native-$1" --native "/tmp/project/build/$1.so" --native-argument unused --native-argument echo "${@:6}"
  await "native workers" listens
  coproc peer { inside /tmp/line 127.0.0.1:7471 2>"$work/peer.log"; }
  peer_process=$!
  ask "$2" "$3"
  kill -KILL "$(owner_process)"
  ask "$4" "$5"
  end
}
serve_natively echo-c five five six six "$shared"
serve_natively echo-cpp five five six six "$shared"
serve_natively adder-coroutine 5 5 7 12
echo "native workers from the same sources"

start_batond coroutines
start first /tmp/project/build/adder-coroutine /tmp/coroutines/echo.sock echo first
coproc peer { inside /tmp/line 127.0.0.1:7471 2>"$work/peer.log"; }
peer_process=$!
ask 5 5
ask 7 12
start second /tmp/project/build/adder-coroutine /tmp/coroutines/echo.sock echo second
kill_worker first
ask 30 42
owned_by second || die "$(owner) answers after the first worker with coroutines was killed"
echo "a coroutine that goes on where another worker's was killed"
end
