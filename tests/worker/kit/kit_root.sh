#!/usr/bin/env bash
# Makes a root that has packages installed and nothing of this repository, in namespaces of its own, for a test that
# sources this. The test's arguments are files: all go to the root's /tmp, and packages among them are installed.
# `case_name` is the test's name where it is skipped. Sets $root, and $work for logs, which die() shows.
set -euo pipefail
# shellcheck source=tests/harness/skip.sh
source tests/harness/skip.sh
skip_this() { skip KitTest "${case_name:?}" "$1"; }
if [[ ${1:-} != --inside ]]; then
  [[ $(id -u) -eq 0 ]] || skip_this "only root can mount roots"
  unshare --mount --net true 2>/dev/null || skip_this "namespaces cannot be made (no CAP_SYS_ADMIN)"
  exec unshare --mount --propagation private --net -- "$0" --inside "$@"
fi
shift
work=$(mktemp -d)
root=$work/root
die() {
  printf '%s: %s\n' "$(basename "$0" .sh)" "$*" >&2
  tail -n 30 "$work"/*log >&2 || true
  exit 1
}
clean_up() {
  # shellcheck disable=SC2046  # a list
  kill -KILL $(jobs -p) 2>/dev/null || true
  umount --recursive --lazy "$work" && rmdir "$work"
}
trap clean_up EXIT
ip link set lo up

mount -t tmpfs tmpfs "$work"
mkdir -p "$work"/{upper,overlay,root}
mount -t overlay overlay -o "lowerdir=/,upperdir=$work/upper,workdir=$work/overlay" "$root" ||
  skip_this "there is no overlay of this machine's root"
mount -t tmpfs -o mode=755 tmpfs "$root/run"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
cp "$@" "$root/tmp"
# What this machine knows of Baton is not there.
repository=$(realpath "$0") repository=${repository%/tests/worker/kit/*}
mount -t tmpfs tmpfs "$root/root"
[[ ! -d $root$repository ]] || mount -t tmpfs tmpfs "$root$repository" # else it lies in /tmp, /run or /root
# With /bin before /usr/bin, CMake finds packages by way of /lib.
inside() { chroot "$root" /usr/bin/env -i PATH=/bin:/usr/bin:/usr/sbin:/sbin "$@"; }
# Nobody reads manuals here: dpkg need not index them.
rm -f "$root/var/lib/man-db/auto-update"
inside sh -c 'dpkg --install /tmp/*.deb' >"$work/install.log" 2>&1 || die "the packages do not install"

# await WHAT COMMAND...: until the command succeeds, for 20 s at most.
await() {
  local what=$1 try
  shift
  for ((try = 0; try < 400; ++try)); do
    if "$@" >"$work/await.log" 2>&1; then return; fi
    sleep 0.05
  done
  die "no $what"
}
