#!/usr/bin/env bash
# A service that is configured to use one GID of its device: it listens at that address alone, says so,
# and does not start with a GID that cannot be used. Nor in a network namespace where its device cannot.
set -euo pipefail

work=$(mktemp -d)
die() { echo "gid: $*" >&2; tail -n 40 "$work"/*.log >&2; exit 1; }

# The machine's address among the GIDs of the port, and a second address beside it.
ip address add 10.0.9.1/24 dev "$(cat /sys/class/infiniband/rxe0/ports/1/gid_attrs/ndevs/0)"
gid_of() {  # ADDRESS: its index; the kernel makes GIDs in its own time
  local hex index
  # shellcheck disable=SC2086  # four words
  hex=$(printf '%02x%02x:%02x%02x' ${1//./ })
  for index in {0..15}; do
    grep -qs "ffff:$hex\$" "/sys/class/infiniband/rxe0/ports/1/gids/$index" && echo "$index" && return
  done
  return 1
}
until index=$(gid_of 10.0.9.1); do sleep 0.1; done

# start GID: a service with it
start() {
  batond --dev --state-dir "$work/state" --service kv --device rdma:rxe0 --gid-index "$1" \
    --listen 0.0.0.0:7471 >"$work/batond.log" 2>&1 &
  batond=$!
}

start 200
if wait "$batond"; then die "started with a GID that is not there"; fi
grep -q "gid_index: 200 of port 1 of device rxe0 .*$index: 10.0.9.1" "$work/batond.log" ||
  die "does not say which GIDs there are"

start "$index"
until baton --state-dir "$work/state" service describe kv >"$work/describe.log" 2>&1; do
  kill -0 "$batond" 2>/dev/null || die "batond has ended"
  sleep 0.2
done
grep -qE "^Device: .*, GID $index: 10\.0\.9\.1 \(RoCE v2\)$" "$work/describe.log" || die "no GID shown"
grep -qE '^Listeners: +10\.0\.9\.1:7471$' "$work/describe.log" || die "listens elsewhere"
cat "$work/describe.log"

# A client is answered at that address, and at no other.
rping -c -a 10.0.9.1 -p 7471 -C 1 >"$work/rping.log" 2>&1 &
rping=$!
until baton --state-dir "$work/state" connection list kv | grep 10.0.9.1 >/dev/null; do
  kill -0 "$rping" 2>/dev/null || die "the service did not hear of the request"
  sleep 0.2
done
rping -c -a "$BATON_VM_ADDRESS" -p 7471 -C 1 >"$work/elsewhere.log" 2>&1 || true
grep -q RDMA_CM_EVENT_REJECTED "$work/elsewhere.log" || die "listens at $BATON_VM_ADDRESS, too"

# In another network namespace Soft-RoCE has no connections: that is said at once, and by the doctor.
kill "$batond"
wait "$batond" || die "batond has not ended in order"
ip netns add blue
cat >"$work/conf" <<END
state_dir: "$work/state"
services { name: "kv" device { rdma { device: "rxe0" } } network_namespace: "blue" }
END
if batond --strict --config "$work/conf" >"$work/batond.log" 2>&1; then die "started in a namespace"; fi
grep -q "service kv: network_namespace: device rxe0 has connections in the machine's first network" \
  "$work/batond.log" || die "does not say why not"
if baton doctor --config "$work/conf" >"$work/doctor.log" 2>&1; then die "the doctor sees nothing"; fi
grep -q "PROBLEM.*network namespace blue: rxe0 is Soft-RoCE" "$work/doctor.log" || die "the doctor"
ip netns delete blue
if batond --strict --config "$work/conf" >"$work/batond.log" 2>&1; then die "started in none"; fi
grep -q "network_namespace: blue: /run/netns/blue: No such file .*; ip netns add blue$" \
  "$work/batond.log" || die "does not say how to make it"
