#!/usr/bin/env bash
# run_vm.sh [--cpus N] [--mem MB] [--timeout S] [--results DIR] [--peer SCRIPT2] SCRIPT [ARGUMENTS]
# Boots a virtual machine of Debian's kernel with a Soft-RoCE device, rxe0 at 10.0.0.1, on top of this
# machine's file system (read-only, with a layer in memory), runs SCRIPT in it as root and in this
# directory, passes its output on, and ends with its exit status; 124 when the time is over. Baton's
# programs are on its PATH ($BATON_BIN, or out/bin of this tree); what it leaves in
# $BATON_VM_RESULTS is in DIR then. With --peer a second machine runs SCRIPT2 at 10.0.0.2, on a wire
# of their own, and ends with the first; its output is prefixed.
# No hardware support is needed or used: the machine is emulated. Without root, files that this user
# cannot read are not readable in the machine, either.
set -euo pipefail
here=$(cd "$(dirname "$(readlink -f "$0")")" && pwd)

usage() { sed -n '2,11s/^# //p' "$0" >&2; exit 2; }
cpus=2 memory=2048 limit=600 peer='' results=''
while [[ ${1:-} == --* ]]; do
  [[ $# -ge 2 ]] || usage
  case $1 in
    --cpus) cpus=$2 ;;
    --mem) memory=$2 ;;
    --timeout) limit=$2 ;;
    --results) results=$2 ;;
    --peer) peer=$2 ;;
    *) usage ;;
  esac
  shift 2
done
[[ $# -ge 1 ]] || usage
script=$1
shift
for file in "$script" ${peer:+"$peer"}; do
  [[ -r $file ]] || { echo "vm: there is no script $file" >&2; exit 2; }
done

kernel=$("$here/prepare.sh")
work=$(mktemp -d /tmp/baton-vm-XXXXXX)
pids=()
# shellcheck disable=SC2317  # by the trap
cleanup() {
  for pid in "${pids[@]}"; do
    kill "$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null || true
  done
  rm -rf "$work"
}
trap cleanup EXIT

# The initial file system: the modules, for all that every machine needs, and what loads them.
make_initrd() {
  local root=$work/initrd.root number=100 module
  mkdir -p "$root"/{bin,modules,proc,sys,dev,lower,upper,root}
  cp "$(command -v busybox)" "$root/bin/busybox"
  cp "$here/init" "$root/init"
  # In load order; what is built into the kernel is not named "insmod".
  PATH=$PATH:/sbin:/usr/sbin modprobe -C /dev/null -d "$kernel" -S "${kernel##*/}" -a --show-depends \
    virtio_pci virtio_console 9pnet_virtio 9p overlay \
    crc32_generic rdma_rxe rdma_ucm ib_uverbs dummy virtio_net >"$work/depends"
  while read -r module; do
    cp "$module" "$root/modules/$((number++)).ko"
  done < <(sed -n 's/^insmod \(.*[^ ]\) *$/\1/p' "$work/depends" | awk '!seen[$0]++')
  (cd "$root" && find . | cpio -o -H newc --quiet) >"$work/initrd"
}

# start NAME ADDRESS WIRE COMMAND...: becomes the machine. Its output goes to its standard output and
# standard error, which are pipes: QEMU opens them anew, and would overwrite a file that others
# write, too.
start() {
  local name=$1 address=$2 wire=$3 network=()
  local share=$work/$name
  shift 3
  mkdir -p "$share/results"
  cp "$here/guest.sh" "$share/guest.sh"
  printf '%s\0' "$@" >"$share/command"
  printf '%s=%q\n' address "$address" directory "$PWD" modules "$kernel/lib/modules/${kernel##*/}" wire "$wire" \
    programs "${BATON_BIN:-${here%/deploy/vm}/out/bin}" >"$share/settings"
  if [[ -n $wire ]]; then
    network=(
      -netdev "dgram,id=wire,local.type=unix,local.path=$work/$name.wire,remote.type=unix,remote.path=$work/$wire.wire"
      -device "virtio-net-pci,netdev=wire,host_mtu=4500,romfile=,mac=52:54:00:00:00:0${address##*.}"
    )
  fi
  # The console is for a machine that does not come up; the script has a channel of its own.
  exec timeout --kill-after=5 "$limit" \
    qemu-system-x86_64 -accel tcg,thread=multi -cpu max -smp "$cpus" -m "$memory" \
    -nographic -no-reboot -kernel "$kernel/vmlinuz" -initrd "$work/initrd" \
    -append "console=ttyS0 panic=-1 quiet tsc=reliable clocksource=tsc mitigations=off" \
    -serial "file:$work/$name.console" -monitor none -parallel none -nic none "${network[@]}" \
    -fsdev local,id=host,path=/,security_model=none,readonly=on,multidevs=remap \
    -device virtio-9p-pci,fsdev=host,mount_tag=host \
    -fsdev "local,id=share,path=$share,security_model=none" \
    -device virtio-9p-pci,fsdev=share,mount_tag=share \
    -device virtio-serial-pci \
    -chardev file,id=out,path=/dev/fd/1,append=on -device virtserialport,chardev=out,name=out \
    -chardev file,id=err,path=/dev/fd/2,append=on -device virtserialport,chardev=err,name=err \
    -object rng-random,id=rng,filename=/dev/urandom -device virtio-rng-pci,rng=rng </dev/null
}

show_console() {
  echo "vm: $2 the console:" >&2
  cat "$work/$1.console" >&2 || true
}

make_initrd
if [[ -n $peer ]]; then
  (start peer 10.0.0.2 first bash "$(realpath "$peer")" > >(sed -u 's/^/peer: /') \
    2> >(sed -u 's/^/peer: /' >&2)) &
  second=$!
  pids+=("$second")
fi
exec {output}> >(exec cat)
relays=("$!")
exec {errors}> >(exec cat >&2)
relays+=("$!")
(start first 10.0.0.1 "${peer:+peer}" bash "$(realpath "$script")" "$@" >&"$output" 2>&"$errors") &
first=$!
pids+=("$first")
exec {output}>&- {errors}>&-
ended=0
wait "$first" || ended=$?
wait "${relays[@]}" || true  # all that the machine said is out
if [[ -n $peer && ! -s $work/peer/status ]] && ! kill -0 "$second" 2>/dev/null; then
  show_console peer "the peer ended without a result;"
fi
if [[ -n $results ]]; then
  mkdir -p "$results"
  cp -r "$work/first/results/." "$results"
fi
# 137: it did not end when it was asked to.
if [[ $ended -eq 124 || $ended -eq 137 ]]; then
  show_console first "the script did not end within $limit s;"
  exit 124
fi
status=$(cat "$work/first/status" 2>/dev/null || true)
if [[ -z $status ]]; then
  show_console first "the machine ended without a result;"
  exit 125
fi
exit "$status"
