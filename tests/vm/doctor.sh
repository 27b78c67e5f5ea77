#!/usr/bin/env bash
# `baton doctor` on a real kernel's RDMA device: nothing is wrong, then one thing after the other is,
# and it says so, with cures that cure when they are typed as they are. Then the udev rule, applied by
# a real udevd.
set -euo pipefail

work=$(mktemp -d)
chmod 755 "$work"
cp "$BATON_BIN/baton" "$work"  # where everybody may run it
state=/tmp/baton-doctor-state  # not there, and anybody may make it
die() { echo "doctor: $*" >&2; cat "$work/out" >&2; exit 1; }

# doctor WANTED_STATUS [COMMAND...]: runs it, through COMMAND if any, and keeps what it says.
doctor() {
  local wanted=$1 status=0
  shift
  "$@" "$work/baton" doctor --state-dir "$state" "${options[@]}" >"$work/out" 2>&1 || status=$?
  [[ $status -eq $wanted ]] || die "exit status $status, not $wanted"
}
# says PATTERN...: each in a line of its own.
says() {
  local pattern
  for pattern in "$@"; do
    grep -qE -- "$pattern" "$work/out" || die "does not say: $pattern"
  done
}
# The cure of the first finding that matches.
cure() { sed -nE "/$1/,\$s/^ *cure: //p" "$work/out" | head -n1; }
# The kernel makes and takes GIDs after addresses come and go, in its own time.
has_address() { grep -q ffff: /sys/class/infiniband/rxe0/ports/1/gids/*; }
nobody=(setpriv --reuid nobody --regid nogroup --clear-groups)
member=(setpriv --reuid nobody --regid nogroup --groups rdma)

cat >"$work/conf" <<END
state_dir: "$state"
services { name: "kv" device { rdma { device: "rxe0" } }
  listeners { host: "$BATON_VM_ADDRESS" port: 7471 } }
END
options=(--config "$work/conf")
doctor 0
says '^OK +kernel' '^OK +module' '^OK +library +rdma-core' '^OK +device +rxe0: can be opened' \
  "^OK +port +rxe0 port 1: RoCE, ACTIVE, .*${BATON_VM_ADDRESS//./\\.} \(index [0-9]+\)" \
  '^OK +memlock' '^OK +service +kv: fits on rxe0 port 1' '^0 problems'
echo "sound: $(tail -n1 "$work/out")"

cat >"$work/conf2" <<END
state_dir: "$state"
services { name: "large" device { rdma { device: "rxe0" } } max_connections: 4096 }
services { name: "lost" device { rdma { device: "mlx5_0" } } }
services { name: "astray" device { rdma {} } listeners { host: "10.9.9.9" port: 7471 } }
END
options=(--config "$work/conf2")
doctor 1
says 'large: device rxe0 is too small, the service needs [0-9]+ entries in each completion queue' \
  'lost: device mlx5_0 is not there; there are rxe0' \
  'astray: listens on 10.9.9.9, which is no address of rxe0 port 1'
number=$(cure 'large:' | sed 's/.*max_connections: \([0-9]*\).*/\1/')
sed -i -e '/lost\|astray/d' -e "s/4096/$number/" "$work/conf2"
doctor 0
echo "services: found, and cured with max_connections: $number"

# Huge pages, of which the machine has none at first.
sed 's/listeners/huge_pages: HUGE_PAGES_2_MIB listeners/' "$work/conf" >"$work/conf3"
options=(--config "$work/conf3")
echo 0 >/proc/sys/vm/nr_hugepages
doctor 0
says '^WARNING +huge pages +kv 8: 8 huge pages of 2 MiB needed, 0 free$'
bash -c "$(cure 'kv 8:')"
doctor 0
says '^OK +huge pages +kv 8: 8 huge pages of 2 MiB needed, 8 free$'
echo 0 >/proc/sys/vm/nr_hugepages
echo "huge pages: found and cured"

# The doctor finds out who may open the nodes, and how much memory an ordinary user may lock.
options=()
chmod 000 /dev/infiniband/uverbs0
(
  ulimit -l 64
  doctor 1 "${nobody[@]}"
)
says '^PROBLEM +node +rxe0: user nobody may not open /dev/infiniband/uverbs0 \(mode 0000' \
  '^PROBLEM +memlock +the hard RLIMIT_MEMLOCK of this shell is 1 MiB' \
  'nobody - memlock unlimited.* >>/etc/security/limits.d/'
mended=$(cure 'rxe0: user nobody')
[[ $mended == "chgrp rdma /dev/infiniband/uverbs0 && chmod 0660 /dev/infiniband/uverbs0 && usermod"* ]] ||
  die "cure: $mended"
bash -c "${mended%% && usermod*}"
doctor 0 "${member[@]}"
says '^OK +device +rxe0: can be opened' '^OK +node +rxe0:'
chmod 0666 /dev/infiniband/uverbs0
doctor 0 "${nobody[@]}"
says '^WARNING +node +rxe0: every user may open' '^OK +memlock'
echo "nodes and memlock: found and cured"

# The link, the address, the device.
interface=$(rdma link show rxe0/1 | sed 's/.*netdev \([^ ]*\).*/\1/')
ip addr flush dev "$interface"
while has_address; do sleep 0.1; done
ip link set "$interface" down
doctor 1
says '^PROBLEM +port +rxe0 port 1: is DOWN' "cure: ip link set $interface up\$" \
  "rxe0 port 1: has no GID: there is no IPv4 or IPv6 address on $interface" \
  "cure: ip addr add ADDRESS/PREFIX dev $interface\$"
bash -c "$(cure 'is DOWN')"
mended=$(cure 'has no GID')
bash -c "${mended/ADDRESS\/PREFIX/$BATON_VM_ADDRESS/24}"
until has_address; do sleep 0.1; done
doctor 0
rdma link delete rxe0
doctor 0
says '^WARNING +device +this machine has no RDMA device' 'services on the soft device work'
options=(--config "$work/conf")
doctor 1
says '^PROBLEM +device +this machine has no RDMA device' \
  'kv: is configured for an RDMA device, and there is none'
rdma link add rxe0 type rxe netdev "$interface"
until has_address; do sleep 0.1; done
echo "link, address, device: found and cured"

rm /dev/infiniband/rdma_cm
doctor 1
says '^PROBLEM +node +rdma_cm: /dev/infiniband/rdma_cm is missing'
bash -c "$(cure 'rdma_cm is missing')"
doctor 0 "${member[@]}"
says '^OK +node +rdma_cm:'
echo "missing node: found and cured"

# The rule, by udevd itself. Only for these: rdma-core's own rules would give rxe0 another name.
chmod 0666 /dev/infiniband/*
mkdir -p /run/udev /etc/udev/rules.d
install -m 644 deploy/udev/70-baton-rdma.rules /etc/udev/rules.d/
/lib/systemd/systemd-udevd --daemon --resolve-names=early >/dev/null 2>&1
udevadm trigger --action=add --settle --subsystem-match=infiniband_verbs --subsystem-match=misc
for node in uverbs0 rdma_cm; do
  mode=$(stat -c '%a %G' "/dev/infiniband/$node")
  [[ $mode == '660 rdma' ]] || die "the rule has made $node $mode"
done
echo "rule: 0660, group rdma"
