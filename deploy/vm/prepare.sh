#!/usr/bin/env bash
# prepare.sh: makes the virtual machine's kernel, modules and initial file system, if they are not
# there, and prints the directory they are in. Nothing is installed on the host.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/baton-vm

# The flavour of Debian's kernel that has Soft-RoCE; the cloud kernels lack it.
package=$(apt-cache depends linux-image-amd64 | awk '/Depends: linux-image/ {print $2; exit}')
[[ -n $package ]] || { echo "vm: apt knows no linux-image-amd64: run apt-get update" >&2; exit 1; }
release=${package#linux-image-}
image=$cache/$release

# What the guest needs before it has its root file system, in load order.
first=(virtio_pci_legacy_dev virtio_pci_modern_dev virtio_ring virtio virtio_pci virtio_console
  netfs fscache 9pnet 9pnet_virtio 9p overlay)

if [[ ! -f $image/vmlinuz ]]; then
  echo "--- Fetching Debian's kernel $release for the virtual machine" >&2
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  (cd "$work" && apt-get -q download "$package" >&2 && dpkg -x ./*.deb tree)
  depmod -b "$work/tree" "$release"
  mkdir -p "$cache"
  rm -rf "$image.new"
  mkdir "$image.new"
  mv "$work/tree/lib/modules/$release" "$image.new/modules"
  mv "$work/tree/boot/vmlinuz-$release" "$image.new/vmlinuz"
  rm -rf "$image"
  mv "$image.new" "$image"
fi

if [[ $here/init -nt $image/initrd || $here/prepare.sh -nt $image/initrd ]]; then
  root=$(mktemp -d)
  mkdir -p "$root"/{bin,modules,proc,sys,dev,lower,upper,root}
  cp "$(command -v busybox)" "$root/bin/busybox"
  cp "$here/init" "$root/init"
  for name in "${first[@]}"; do
    file=$(find "$image/modules" -name "$name.ko" -print -quit)
    # Built into the kernel otherwise.
    if [[ -n $file ]]; then
      cp "$file" "$root/modules/"
      echo "$name" >>"$root/modules/order"
    fi
  done
  (cd "$root" && find . | cpio -o -H newc --quiet) | gzip -1 >"$image/initrd.new"
  mv "$image/initrd.new" "$image/initrd"
  rm -rf "$root"
fi
echo "$image"
