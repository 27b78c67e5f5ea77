// These functions load, store and prefetch memory that another process may write at the same time.
#ifndef LIB_ARENA_ATOMIC_ACCESS_H_
#define LIB_ARENA_ATOMIC_ACCESS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace baton::arena {

template <typename T>
T LoadAcquire(const T& word) {
  return std::atomic_ref<T>(const_cast<T&>(word)).load(std::memory_order_acquire);
}

template <typename T>
T LoadRelaxed(const T& word) {
  return std::atomic_ref<T>(const_cast<T&>(word)).load(std::memory_order_relaxed);
}

// Reads four neighbouring bytes with one load. REQUIRES: `first` is at a multiple of four.
inline uint32_t LoadFourBytes(const uint8_t& first) {
  using Word [[gnu::may_alias]] = uint32_t;
  return __atomic_load_n(reinterpret_cast<const Word*>(&first), __ATOMIC_RELAXED);
}

template <typename T>
void StoreRelease(T& word, T value) {
  std::atomic_ref<T>(word).store(value, std::memory_order_release);
}

template <typename T>
void StoreRelaxed(T& word, T value) {
  std::atomic_ref<T>(word).store(value, std::memory_order_relaxed);
}

// Orders everything before it with everything after it, in the order all threads see.
inline void FullFence() { std::atomic_thread_fence(std::memory_order_seq_cst); }

// Orders stores against a kill between them. The compiler does not reorder them, and the processor
// completes the stores of a killed thread in program order.
inline void OrderForCrash() { std::atomic_signal_fence(std::memory_order_seq_cst); }

// Copies shared bytes once: the compiler may not read them again when the copy is used.
template <typename T>
T CopyOnce(const T& shared) {
  static_assert(std::is_trivially_copyable_v<T>);
  T copy;
  std::memcpy(&copy, &shared, sizeof(T));
  asm volatile("" : : "r"(&copy) : "memory");
  return copy;
}

template <typename T>
void CopyOnce(const T& shared, T* copy) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::memcpy(copy, &shared, sizeof(T));
  asm volatile("" : : "r"(copy) : "memory");
}

// Fetches for writing a line that the other side has read and cached. For generic x86 the builtin
// would only fetch for reading. Processors without PREFETCHW ignore it.
//
// A store to a line that the other side has cached waits in the processor's store buffer until the
// line arrives. When the buffer is full, all other stores wait, too. tests/bench/RESULTS.md has the
// effect.
inline void FetchToWrite(const void* line) {
#if defined(__x86_64__)
  asm volatile("prefetchw %0" : : "m"(*static_cast<const char*>(line)));
#else
  __builtin_prefetch(line, 1);
#endif
}

// Packs neighbouring fields for a single store, little-endian like the layout.
constexpr uint32_t FourBytes(uint8_t a, uint8_t b, uint8_t c, uint8_t d) {
  return a | uint32_t{b} << 8 | uint32_t{c} << 16 | uint32_t{d} << 24;
}
constexpr uint64_t TwoFields(uint32_t first, uint32_t second) {
  return uint64_t{second} << 32 | first;
}

// Stores neighbouring fields, 16 bytes at `Offset`, a multiple of 16, with one store.
template <size_t Offset, typename T>
void StorePair(T& to, uint64_t first, uint64_t second) {
  using Pair [[gnu::vector_size(16)]] = uint64_t;
  static_assert(Offset % sizeof(Pair) == 0 && Offset + sizeof(Pair) <= sizeof(T));
  const Pair both = {first, second};
  std::memcpy(reinterpret_cast<uint8_t*>(&to) + Offset, &both, sizeof(both));
}

}  // namespace baton::arena

#endif  // LIB_ARENA_ATOMIC_ACCESS_H_
