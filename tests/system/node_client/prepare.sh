#!/usr/bin/env bash
# prepare.sh: the libraries that package-lock.json names, fetched once into a cache; prints the directory
# that has them. Their installation scripts do not run.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# Not $HOME, which tests do not have.
cache=$(getent passwd "$(id -u)" | cut -d: -f6)/.cache/baton-node
ready=$cache/$(sha256sum <"$here/package-lock.json" | cut -c1-16)
if [[ ! -d $ready ]]; then
  mkdir -p "$cache"
  new=$(mktemp -d "$cache/new.XXXXXX")
  trap 'rm -rf "$new"' EXIT
  cp "$here/package.json" "$here/package-lock.json" "$new"
  (cd "$new" && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error >&2)
  mv -T "$new" "$ready" 2>/dev/null || true # another one was faster
fi
printf '%s\n' "$ready"
