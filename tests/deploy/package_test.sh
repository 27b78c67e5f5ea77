#!/usr/bin/env bash
# package_test.sh PACKAGE LIBRARY: the Debian package in a root of its own, thrown away afterwards: it installs,
# what it depends on is there, its unit is sound, and nothing is left when it is purged. LIBRARY, libbaton-dev, has
# what a worker without the library is written from.
set -euo pipefail
package=$PWD/$1 library=$PWD/$2
root=$(mktemp -d "$TEST_TMPDIR/root.XXXXXX")
log=$TEST_TMPDIR/log
die() { printf 'package_test: %s\n' "$*" >&2 && { [[ ! -e $log ]] || cat "$log" >&2; } && exit 1; }

[[ $(id -u) -eq 0 ]] || die "only root can own what a package installs"
mkdir -p "$root"/var/lib/dpkg/{info,updates} "$root"/{etc/systemd/system,run,var/lib/systemd}
touch "$root/var/lib/dpkg/status"
printf 'root:x:0:0::/root:/bin/sh\n' >"$root/etc/passwd"
printf 'root:x:0:\n' >"$root/etc/group"
# What the package needs is this machine's, and so are the programs that its scripts call.
in_root() {
  dpkg --root="$root" --log=/dev/null --force-script-chrootless --force-depends "$@" >"$log" 2>&1 ||
    die "dpkg $* failed"
}
files() { (cd "$root" && find . -path ./var/lib/dpkg -prune -o -print | sort); }

before=$(files)
in_root --install "$package"
for file in usr/bin/baton usr/libexec/baton/batond usr/libexec/baton/baton-driver usr/libexec/baton/baton-keeper \
  usr/libexec/baton/baton-control usr/libexec/baton/baton-init usr/libexec/baton/baton-launch usr/libexec/baton/baton-nic \
  usr/libexec/baton/libbaton-driver.so; do
  [[ -x $root/$file ]] || die "$file is not there"
  ! ldd "$root/$file" | grep 'not found' >&2 || die "$file lacks a library"
done
for file in man/man1/baton.1.gz man/man1/baton-service.1.gz bash-completion/completions/baton \
  zsh/vendor-completions/_baton fish/vendor_completions.d/baton.fish doc/baton/copyright \
  doc/baton/README.md doc/baton/runbook.md doc/baton/upgrade_batond.md; do
  [[ -s $root/usr/share/$file ]] || die "usr/share/$file is not there"
done
grep -q 'Parts of libgrpc-dev are in the programs' "$root/usr/share/doc/baton/copyright" ||
  die "the licences of the libraries that the programs contain are not there"
version=$(dpkg --root="$root" --admindir="$root/var/lib/dpkg" -s baton | sed -n 's/^Version: //p')
[[ $("$root/usr/bin/baton" --version) == *"$version"* ]] ||
  die "the package is of $version, its baton of $("$root/usr/bin/baton" --version)"
# check_links DOCUMENTS: each link of them leads to a file that is shipped beside them.
check_links() {
  local docs links from to file
  docs=$(realpath "$1")
  links=$(grep -oE '\]\([^):# ]+[)#]' -r --include='*.md' "$docs" | sed -E 's/:\]\((.*)[)#]$/:\1/') ||
    die "no document of $1 has a link: they are looked for in vain"
  while IFS=: read -r from to; do
    file=$(realpath -m "$(dirname "$from")/$to")
    [[ $file == "$docs"/* && -s $file ]] || die "${from#"$docs/"} leads to $to, which is not there"
  done <<<"$links"
}
check_links "$root/usr/share/doc/baton"

# From these a worker is written in another language: protoc reads them where they lie.
dpkg-deb -x "$library" "$TEST_TMPDIR/library"
docs=$TEST_TMPDIR/library/usr/share/doc/libbaton-dev
for file in proto/worker_channel.md lib/arena/layout.md lib/arena/layout.h README.md; do
  [[ -s $docs/$file ]] || die "libbaton-dev has no $file"
done
check_links "$docs"
protoc -I "$docs" --descriptor_set_out=/dev/null proto/baton/internal/keeper.proto proto/baton/v1/worker.proto ||
  die "the proto files of libbaton-dev are not complete"

(cd "$root" && md5sum --quiet -c "var/lib/dpkg/info/baton.md5sums") || die "files differ from the package's"
grep -q '^rdma:' "$root/etc/group" || die "there is no group rdma"
grep -q '^baton-control:' "$root/etc/passwd" || die "control has no user"
grep -q '^baton-nic:' "$root/etc/passwd" || die "NICs have no user"
grep -q '^baton-broker:' "$root/etc/passwd" || die "brokers have no user"
[[ $(stat -c '%a %u' "$root/run/baton") == '700 0' ]] || die "the state directory is not there, or not root's"
[[ $(readlink "$root/etc/systemd/system/multi-user.target.wants/batond.service") == */batond.service ]] ||
  die "the unit is not enabled"

# The package depends on the libraries that the programs need, and names those that are in them.
depends=$(dpkg-deb -f "$package" Depends)
for name in libc6 libibverbs1 libprometheus-cpp-pull1.0; do
  [[ ", $depends" == *", $name "* || ", $depends," == *", $name,"* ]] || die "no $name in Depends: $depends"
done
[[ $depends != *librdmacm* ]] || die "only clients need librdmacm: $depends"
built_using=$(dpkg-deb -f "$package" Built-Using)
for name in abseil c-ares grpc protobuf re2; do
  [[ ", $built_using" == *", $name (= "* ]] || die "no $name in Built-Using: $built_using"
done

# Beside the units of this machine, which it refers to.
cp -a "$root" "$root.verified"
cp -an /lib/systemd/system/. "$root.verified/lib/systemd/system/"
systemd-analyze --root="$root.verified" verify batond.service >"$log" 2>&1 || die "its unit is not sound"
# The unit's exposure is at most 7.0 of 10. It runs as root, has devices, and may start workers as their users.
systemd-analyze --root="$root" --offline=true --threshold=70 security batond.service >"$log" 2>&1 ||
  die "its unit exposes more than it should"
tail -n 1 "$log"

# An upgrade of the package keeps what the operator has written.
install -D -m 600 /dev/null "$root/etc/baton/baton.textproto"
chmod 711 "$root/run/baton" # as batond does for other users
in_root --install "$package"
[[ $(stat -c %a "$root/run/baton") == 711 ]] || die "the state directory is closed to those who use it"
[[ -e $root/etc/baton/baton.textproto ]] || die "the operator's configuration is gone"
rm -r "$root/etc/baton"

in_root --remove baton
[[ ! -e $root/usr/bin/baton ]] || die "baton is there after its removal"
in_root --purge baton
left=$(diff <(printf '%s\n' "$before") <(files) | grep '^>' | grep -v -E '/etc/(group|gshadow|passwd|shadow|\.pwd\.lock)-?$' || true)
[[ -z $left ]] || die "left behind: $left"
