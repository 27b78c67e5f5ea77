#!/usr/bin/env bash
# exports_test.sh CONTROL EXECUTABLE...: what native workers' objects find in an executable that loads
# them. What it has of libstdc++ and libc (copies of their data, instances of their templates) is
# theirs; beyond that, nothing but baton_native_host, and no libprotobuf beside it. CONTROL is one
# that was linked as any program is, and is found out.
set -euo pipefail

offences() {
  nm -DC --defined-only -- "$1" | cut -d' ' -f3- | grep -vE '@(GLIBC|GLIBCXX|CXXABI)' |
    grep -vE '^(std::|(vtable|VTT|typeinfo|typeinfo name) for std::|baton_native_host$)' || true
  readelf -d -- "$1" | grep -F 'Shared library: [libprotobuf' || true
}

control=$1
shift
found=$(offences "$control")
if [[ $found != *libprotobuf* || $found != *google::protobuf::* ]]; then
  echo "$control shows nothing that it should not: this checks nothing"
  exit 1
fi
for executable; do
  [[ -x $executable ]]
  found=$(offences "$executable")
  [[ -z $found ]] || { echo "$executable shows to objects: $found"; exit 1; }
done
