#!/usr/bin/env bash
# build_package.sh NAME.deb [FROM=TO[:MODE]]...: the Debian package NAME of the programs and files that are
# named, each at TO, without debug information, with shell completion as usr/bin/baton prints it. What goes to
# DEBIAN/ belongs to the package itself. FROM link:TARGET is a symbolic link. A FROM that ends with .in, and
# each TO, have @VERSION@ and @MULTIARCH@ replaced. Three TOs are no paths: VERSION, the file has the
# release; CONTROL, a paragraph of it is the template of the package's DEBIAN/control; MAN, a directory of
# manual pages. The same files make the same package.
set -euo pipefail

output=$PWD/$1
name=$(basename "$1" .deb)
shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export SOURCE_DATE_EPOCH=1767225600 # a time that is always the same
umask 022

version='' control='' multiarch=$(dpkg-architecture -q DEB_HOST_MULTIARCH)
for item in "$@"; do
  case ${item#*=} in
    VERSION) version=$(sed -n 's/.*kRelease\[\] = "\(.*\)".*/\1/p' "${item%%=*}") ;;
    CONTROL) control=${item%%=*} ;;
  esac
done
[[ -n $version && -n $control ]] || { echo "no VERSION, or no CONTROL" >&2 && exit 1; }
fill_in() { sed -e "s/@VERSION@/$version/g" -e "s/@MULTIARCH@/$multiarch/g"; }

binaries=()
mkdir -p "$work/root/DEBIAN" "$work/debian"
for item in "$@"; do
  from=${item%%=*} to=${item#*=} mode=644
  if [[ $to == *:* ]]; then mode=${to##*:} to=${to%:*}; fi
  to=$(fill_in <<<"$to")
  case $to in
    VERSION | CONTROL) continue ;;
    MAN) install -D -m 644 -t "$work/root/usr/share/man/man1" "$from"/*.1 && continue ;;
  esac
  mkdir -p "$work/root/${to%/*}"
  if [[ $from == link:* ]]; then
    ln -s "${from#link:}" "$work/root/$to"
  elif [[ $from == *.in ]]; then
    fill_in <"$from" >"$work/root/$to"
  else
    install -m "$mode" "$from" "$work/root/$to"
    if [[ $to == usr/bin/* || $to == usr/libexec/* || $to == *.so.* ]]; then
      strip --strip-unneeded "$work/root/$to"
      binaries+=("$work/root/$to")
    fi
  fi
done
if [[ -d $work/root/usr/share/man ]]; then gzip -9n "$work"/root/usr/share/man/*/*; fi
complete() {
  mkdir -p "$work/root/usr/share/${2%/*}"
  "$work/root/usr/bin/baton" completion "$1" >"$work/root/usr/share/$2"
}
if [[ -x $work/root/usr/bin/baton ]]; then
  complete bash bash-completion/completions/baton
  complete zsh zsh/vendor-completions/_baton
  complete fish fish/vendor_completions.d/baton.fish
fi

# Programs have these libraries in themselves (lib/bazel/toolchain/repositories.bzl): whoever gets a program gets their
# licences, and the archive's keepers learn from Built-Using whose mends it needs.
contained=(libgrpc-dev libprotobuf-dev libabsl-dev libc-ares-dev libre2-dev) built_using=''
if [[ -x $work/root/usr/bin/baton ]]; then
  # shellcheck disable=SC2016  # dpkg-query expands these
  built_using=$(dpkg-query -W -f '${source:Package} (= ${source:Version}), ' "${contained[@]}")
  for package in "${contained[@]}"; do
    printf '\nParts of %s are in the programs:\n\n' "$package"
    cat "/usr/share/doc/$package/copyright"
  done >>"$work/root/usr/share/doc/$name/copyright"
fi

# A package libNAME0 gets what debhelper would give it. Packages whose programs link with its libraries then
# depend on it, and ldconfig is run.
if [[ $name =~ ^lib.*[^0-9][0-9]+$ ]]; then
  for library in "$work/root/usr/lib/$multiarch"/*.so.*; do
    library=${library##*/}
    echo "${library%%.so.*} ${library##*.so.} $name (>= $version)"
  done >"$work/root/DEBIAN/shlibs"
  echo 'activate-noawait ldconfig' >"$work/root/DEBIAN/triggers"
fi

# It reads the names of source and package from debian/control, and writes no file with -O.
printf 'Source: baton\n\nPackage: baton\nArchitecture: any\n' >"$work/debian/control"
depends=''
if [[ ${#binaries[@]} -gt 0 ]]; then
  depends=$(cd "$work" && dpkg-shlibdeps -O "${binaries[@]}" | sed -n 's/^shlibs:Depends=//p')
fi
size=$(du -k -s --apparent-size --exclude=DEBIAN "$work/root" | cut -f1)
awk -v RS= -v name="$name" '$1 == "Package:" && $2 == name' "$control" | fill_in |
  sed -e "s/@ARCHITECTURE@/$(dpkg --print-architecture)/" \
    -e "s/@INSTALLED_SIZE@/$size/" -e "s/@DEPENDS@/$depends/" \
    -e "${built_using:+/^Depends:/aBuilt-Using: ${built_using%, }}" >"$work/root/DEBIAN/control"
(cd "$work/root" &&
  find . -path ./DEBIAN -prune -o -type f -printf '%P\0' | sort -z | xargs -0 md5sum >DEBIAN/md5sums)
find "$work/root" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
dpkg-deb --root-owner-group -Zzstd --build "$work/root" "$output" >/dev/null
