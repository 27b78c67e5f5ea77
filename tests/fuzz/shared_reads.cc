#include "tests/fuzz/shared_reads.h"

#include <atomic>
#include <cstring>

namespace baton::fuzz {
namespace {

// Read by every thread that runs instrumented code; only the readers of the memory get further.
std::atomic<uintptr_t> begin{0};
std::atomic<size_t> size{0};
Interference pending;
uint32_t left = 0;
uint64_t reads = 0;

[[maybe_unused]] void BeforeRead(const void* address) {
  const uintptr_t at = reinterpret_cast<uintptr_t>(address);
  const size_t bytes = size.load(std::memory_order_relaxed);
  const size_t offset = at - begin.load(std::memory_order_relaxed);
  if (offset >= bytes) return;
  ++reads;
  if (pending.times == 0 || left-- > 0) return;
  --pending.times;
  left = pending.reads_before;
  const size_t word = offset / sizeof(uint64_t) + pending.words_behind;
  if (word >= bytes / sizeof(uint64_t)) return;
  auto* const target = reinterpret_cast<uint64_t*>(begin.load()) + word;
  *target = pending.add ? *target + pending.value : pending.value;
}

}  // namespace

void SharedReads::Watch(void* memory, size_t bytes) {
  pending = {};
  reads = 0;
  begin = reinterpret_cast<uintptr_t>(memory);
  size = bytes;
}

void SharedReads::Forget() { size = 0; }

void SharedReads::Interfere(const Interference& interference) {
  pending = interference;
  left = interference.reads_before;
}

uint64_t SharedReads::seen() { return reads; }

}  // namespace baton::fuzz

#if __has_feature(address_sanitizer)
// Names that the compiler (-fsanitize-coverage=trace-loads) and the linker (--wrap) give.
// NOLINTBEGIN
extern "C" {
using baton::fuzz::BeforeRead;
void __sanitizer_cov_load1(uint8_t* at) { BeforeRead(at); }
void __sanitizer_cov_load2(uint16_t* at) { BeforeRead(at); }
void __sanitizer_cov_load4(uint32_t* at) { BeforeRead(at); }
void __sanitizer_cov_load8(uint64_t* at) { BeforeRead(at); }
void __sanitizer_cov_load16(__uint128_t* at) { BeforeRead(at); }

void* __real___asan_memcpy(void* to, const void* from, size_t bytes);
void* __wrap___asan_memcpy(void* to, const void* from, size_t bytes) {
#ifdef BATON_TRACES_LOADS
  BeforeRead(from);
#endif
  return __real___asan_memcpy(to, from, bytes);
}
}
// NOLINTEND
#endif
