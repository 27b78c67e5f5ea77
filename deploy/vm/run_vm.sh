#!/usr/bin/env bash
# run_vm.sh [--cpus N] [--mem MB] [--timeout S] [--peer SCRIPT2] [--files DIR] SCRIPT [ARGUMENTS]
# Boots a virtual machine of Debian's kernel with a Soft-RoCE device, rxe0 at 10.0.0.1, on top of this
# machine's file system (read-only, with a layer in memory), runs SCRIPT in it as root, passes its
# output on, and ends with its exit status; 124 when the time is over. With --peer a second machine
# runs SCRIPT2 at 10.0.0.2, on a wire of their own, and ends with the first; its output is prefixed.
# What SCRIPT writes to the directory $BATON_VM_FILES is then in DIR.
# No hardware support is needed or used: the machine is emulated.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
tree=$(cd "$here/../.." && pwd)

usage() { sed -n '2,8s/^# //p' "$0" >&2; exit 2; }
cpus=2 memory=2048 limit=600 peer= files=
while [[ ${1:-} == --* ]]; do
  [[ $# -ge 2 ]] || usage
  case $1 in
    --cpus) cpus=$2 ;;
    --mem) memory=$2 ;;
    --timeout) limit=$2 ;;
    --peer) peer=$2 ;;
    --files) files=$2 ;;
    *) usage ;;
  esac
  shift 2
done
[[ $# -ge 1 ]] || usage

image=$("$here/prepare.sh")
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

# start NAME ADDRESS WIRE COMMAND...: becomes the machine. Its output goes to its standard output and
# standard error, which are pipes: QEMU opens them anew, and would overwrite a file that others
# write, too.
start() {
  local name=$1 address=$2 wire=$3 network=() share=()
  shift 3
  printf '%s\0' "$@" >"$work/$name.job"
  : >"$work/$name.result"
  if [[ -n $wire ]]; then
    network=(
      -netdev "dgram,id=wire,local.type=unix,local.path=$work/$name.wire,remote.type=unix,remote.path=$work/$wire.wire"
      -device "virtio-net-pci,netdev=wire,host_mtu=4500,romfile=,mac=52:54:00:00:00:0${address##*.}"
    )
  fi
  if [[ $name == first && -n $files ]]; then
    share=(-fsdev "local,id=files,path=$files,security_model=none"
      -device virtio-9p-pci,fsdev=files,mount_tag=files)
  fi
  local kernel=(console=ttyS0 panic=-1 quiet tsc=reliable clocksource=tsc mitigations=off
    "baton.tree=$tree" "baton.job=$work/$name.job" "baton.address=$address"
    "baton.modules=$image/modules" ${wire:+baton.wire=1}
    ${files:+baton.files=1})
  # The console is for a machine that does not come up; the script has a channel of its own.
  exec timeout --kill-after=5 "$limit" \
    qemu-system-x86_64 -accel tcg,thread=multi -cpu max -smp "$cpus" -m "$memory" \
    -nographic -no-reboot -kernel "$image/vmlinuz" -initrd "$image/initrd" -append "${kernel[*]}" \
    -serial "file:$work/$name.console" -monitor none -parallel none -nic none "${network[@]}" \
    -fsdev local,id=host,path=/,security_model=none,readonly=on,multidevs=remap \
    -device virtio-9p-pci,fsdev=host,mount_tag=host \
    "${share[@]}" -device virtio-serial-pci \
    -chardev file,id=out,path=/dev/fd/1,append=on -device virtserialport,chardev=out,name=out \
    -chardev file,id=err,path=/dev/fd/2,append=on -device virtserialport,chardev=err,name=err \
    -chardev "file,id=result,path=$work/$name.result" \
    -device virtserialport,chardev=result,name=result \
    -object rng-random,id=rng,filename=/dev/urandom -device virtio-rng-pci,rng=rng </dev/null
}

if [[ -n $peer ]]; then
  peer=$(realpath "$peer")
  (start peer 10.0.0.2 first bash "$peer" > >(sed -u 's/^/peer: /') 2> >(sed -u 's/^/peer: /' >&2)) &
  pids+=($!)
fi
script=$(realpath "$1")
shift
[[ -z $files ]] || files=$(mkdir -p "$files" && realpath "$files")
exec {output}> >(exec cat)
relays=($!)
exec {errors}> >(exec cat >&2)
relays+=($!)
(start first 10.0.0.1 "${peer:+peer}" bash "$script" "$@" >&"$output" 2>&"$errors") &
first=$!
pids+=("$first")
exec {output}>&- {errors}>&-
ended=0
wait "$first" || ended=$?
wait "${relays[@]}" || true  # all that the machine said is out
# 137: it did not end when it was asked to.
if [[ $ended -eq 124 || $ended -eq 137 ]]; then
  echo "vm: the script did not end within $limit s; the console:" >&2
  cat "$work/first.console" >&2
  exit 124
fi
status=$(cat "$work/first.result")
if [[ -z $status ]]; then
  echo "vm: the machine ended without a result; its console:" >&2
  cat "$work/first.console" >&2
  exit 125
fi
exit "$status"
