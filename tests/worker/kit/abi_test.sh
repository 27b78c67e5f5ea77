#!/usr/bin/env bash
# abi_test.sh LIBRARY INTERFACE MAP HEADER RECORD: the C interface is the recorded one, for programs that were
# built with an earlier release. INTERFACE is the part of LIBRARY that defines it, with its types.
# BATON_UPDATE_ABI=1 records what was added.
set -euo pipefail
library=$PWD/$1 interface=$PWD/$2 map=$PWD/$3 header=$PWD/$4 record=$PWD/$5
work=$(mktemp -d "$TEST_TMPDIR/abi.XXXXXX")
mkdir "$work/include"
cp "$header" "$work/include"
# The types of the library's inside are nobody's business.
cat >"$work/ignore" <<'END'
[suppress_type]
  source_location_not_regexp = baton\.h$
  drop = yes
[suppress_function]
  symbol_name_not_regexp = ^baton_
  drop = yes
END
g++ -shared -fuse-ld=bfd -Wl,-soname,libbaton.so.0 "-Wl,--version-script=$map" -o "$work/interface.so" \
  -Wl,--whole-archive "$interface" -Wl,--no-whole-archive
abidw --no-corpus-path --no-comp-dir-path --no-show-locs --no-elf-needed --drop-private-types \
  --suppressions "$work/ignore" --headers-dir "$work/include" --out-file "$work/now" "$work/interface.so"

# What the library exports is the interface, and what keepers look for in native workers' objects.
exported() { nm --dynamic --defined-only "$1" | awk '$2 != "A" { print $3 }'; }
diff <(exported "$library" | sort) \
  <({ exported "$work/interface.so" && echo baton_native_object@@LIBBATON_0; } | sort) || {
  echo "abi_test: < is exported and not in baton.h, > is declared there and not exported" >&2
  exit 1
}

status=0
abidiff "$record" "$work/now" || status=$?
if [[ $((status & 8)) -ne 0 ]]; then
  echo "abi_test: programs that were built with an earlier release break: give the library another soname" >&2
  exit 1
fi
if [[ ${BATON_UPDATE_ABI:-} == 1 ]]; then
  cp "$work/now" "$(readlink -f "$record")"
elif [[ $status -ne 0 ]]; then
  echo "abi_test: the interface differs. What only adds functions, or members at the end of structures that" \
    "have a size, is recorded with 'BATON_UPDATE_ABI=1 bazel run //tests/worker/kit:abi_test'. Anything else" \
    "breaks programs that were built with an earlier release, and needs another soname" >&2
  exit 1
fi
