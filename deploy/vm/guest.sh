#!/usr/bin/env bash
# Runs in the virtual machine as its init: brings Soft-RoCE up, runs the script it was started for,
# hands its exit status to the host and turns the machine off.
set -euo pipefail
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8

value_of() { sed -n "s/.*\\b$1=\\([^ ]*\\).*/\\1/p" /proc/cmdline; }
tree=$(value_of baton.tree)
job=$(value_of baton.job)
address=$(value_of baton.address)
modules=$(value_of baton.modules)

# The host shows what is on the console when there is no result.
give_up() {
  echo "vm: $*" >/dev/console
  poweroff -f
}
trap 'give_up "guest.sh, line $LINENO"' ERR

prepare() {
  mount -t tmpfs tmpfs /run
  mkdir -p /dev/pts /dev/shm
  mount -t devpts devpts /dev/pts
  mount -t tmpfs tmpfs /dev/shm
  hostname baton-vm
  ulimit -l unlimited -n 65536
}

# By dependency, from the kernel's own tree.
load() { modprobe -d /run/modules "$@" || give_up "module $* cannot be loaded"; }

start_rdma() {
  local device=eth0
  mkdir -p /run/modules/lib/modules
  ln -s "$modules" "/run/modules/lib/modules/$(uname -r)"
  ip link set lo up
  load -a crc32_generic rdma_rxe rdma_ucm ib_uverbs
  if [[ -n $(value_of baton.wire) ]]; then
    load virtio_net
  else
    load dummy
    device=dummy0
    ip link show dummy0 >/dev/null 2>&1 || ip link add dummy0 type dummy
  fi
  # 4096 bytes and headers: Soft-RoCE's largest path MTU.
  ip link set "$device" mtu 4200
  ip addr add "$address/24" dev "$device"
  ip link set "$device" up
  rdma link add rxe0 type rxe netdev "$device" || give_up "rxe0 cannot be made"
}

prepare
start_rdma
out='' err='' result=''
for port in /sys/class/virtio-ports/*; do
  case $(cat "$port/name") in
    out) out=/dev/${port##*/} ;;
    err) err=/dev/${port##*/} ;;
    result) result=/dev/${port##*/} ;;
  esac
done
[[ -c $out && -c $err && -c $result ]] || give_up "no channel to the host"
if [[ -n $(value_of baton.files) ]]; then
  export BATON_VM_FILES=/run/files
  mkdir "$BATON_VM_FILES"
  mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000 files "$BATON_VM_FILES"
fi
mapfile -d '' -t command <"$job"
export PATH=$tree/out/bin:$PATH BATON_BIN=$tree/out/bin BATON_VM=1 BATON_VM_ADDRESS=$address
cd "$tree"
status=0
setsid "${command[@]}" </dev/null >"$out" 2>"$err" || status=$?
echo "$status" >"$result"
sync
poweroff -f
