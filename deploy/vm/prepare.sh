#!/usr/bin/env bash
# prepare.sh: makes the virtual machine's kernel and modules, if they are not there, and prints the
# directory they are in. Nothing is installed on the host.
#   VERSION/vmlinuz
#   VERSION/lib/modules/VERSION/
set -euo pipefail
cache=${XDG_CACHE_HOME:-${HOME:?}/.cache}/baton-vm/kernels
mkdir -p "$cache"

# The flavour of Debian's kernel that has Soft-RoCE; the cloud kernels lack it.
latest() { apt-cache depends linux-image-amd64 2>/dev/null | awk '/Depends: linux-image/ {print $2; exit}'; }

# What is there, the newest first.
cached() { find "$cache" -mindepth 2 -maxdepth 2 -name vmlinuz -printf '%h\n' | sort -Vr | head -n1; }

fetch() {
  local package work release
  package=$(latest)
  [[ -n $package ]] || return 1
  release=${package#linux-image-}
  [[ ! -f $cache/$release/vmlinuz ]] || return 0
  echo "--- Fetching Debian's kernel $release for the virtual machine" >&2
  work=$(mktemp -d "$cache/.new-XXXXXX")
  if ! { (cd "$work" && apt-get -q download "$package" >&2) && dpkg -x "$work"/*.deb "$work/tree" &&
    depmod -b "$work/tree" "$release" && mkdir "$work/image" &&
    mv "$work/tree/boot/vmlinuz-$release" "$work/image/vmlinuz" &&
    mv "$work/tree/lib" "$work/image/lib"; }; then
    rm -rf "$work"
    return 1
  fi
  # What a running machine needs of an older one, it has loaded.
  find "$cache" -mindepth 1 -maxdepth 1 -type d ! -name '.*' -exec rm -rf {} +
  mv -T "$work/image" "$cache/$release"
  rm -rf "$work"
}

update() {
  local as_root=()
  [[ $(id -u) -eq 0 ]] || as_root=(sudo -n)
  "${as_root[@]}" apt-get -q update >&2
}

exec {lock}>"$cache/.lock"
flock "$lock"
# Apt is asked again when its lists have changed: it takes longer than to start a machine's kernel.
image=$(cached)
if [[ -n $image && ! /var/lib/apt/lists -nt $cache/.asked ]]; then
  echo "$image"
  exit 0
fi
touch "$cache/.asked"
if ! fetch && ! { update && fetch; }; then
  if [[ -z $image ]]; then
    echo "vm: Debian's kernel cannot be fetched: apt has no linux-image-amd64, or no network" >&2
    exit 1
  fi
  echo "vm: whether there is a newer kernel than ${image##*/} cannot be found out" >&2
fi
cached
