#!/usr/bin/env bash
# judge_mutant.sh: a defect is found by an oracle only.
set -euo pipefail
log=$(mktemp)
trap 'rm -f "$log"' EXIT

# judge VERDICT LINE...: of a log with these lines.
judge() {
  local verdict
  printf '%s\n' "${@:2}" >"$log"
  verdict=$(tests/fuzz/judge_mutant.sh "$log")
  [[ $verdict == "$1"* ]] || { echo "\"$verdict\", not \"$1\": of ${*:2}" && exit 1; }
}

ran='stat::number_of_executed_units: 17'
judge 'found: broken invariant: posts == device_.posts()' \
  'tests/fuzz/x.cc:35: broken invariant: posts == device_.posts()' \
  '==7== ERROR: libFuzzer: deadly signal' "$ran"
judge 'found: ERROR: AddressSanitizer: heap-buffer-overflow' \
  '==7==ERROR: AddressSanitizer: heap-buffer-overflow on address 0x1' "$ran"
judge 'found: runtime error: shift' 'lib/x.cc:3:1: runtime error: shift exponent 70' "$ran"
judge 'found: ' "terminate called after throwing an instance of 'std::out_of_range'" "$ran"
judge 'ENDED' "terminate called after throwing an instance of 'std::bad_alloc'" "$ran"
judge 'NOT FOUND' 'Done 17 runs in 61 second(s)' "$ran"
judge 'DID NOT RUN' 'out/fuzz/bin/x: error while loading shared libraries: libx.so.1'
judge 'DID NOT RUN' ''
judge 'DID NOT RUN' 'x.cc:3: broken invariant: there is a corpus' 'stat::number_of_executed_units: 0'
judge 'ENDED' '==7== ERROR: libFuzzer: out-of-memory (used: 4100Mb; limit: 4096Mb)' "$ran"
judge 'ENDED' '==7== ERROR: libFuzzer: timeout after 60 seconds' "$ran"
judge 'ENDED' '==7== ERROR: libFuzzer: deadly signal' "$ran"
judge 'ENDED' '==7==ERROR: AddressSanitizer: out of memory: allocator is trying to allocate' "$ran"
echo "judged as they should be"
