// Access to memory that another process may write at the same time.
#ifndef LIB_ARENA_ATOMIC_ACCESS_H_
#define LIB_ARENA_ATOMIC_ACCESS_H_

#include <atomic>
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

}  // namespace baton::arena

#endif  // LIB_ARENA_ATOMIC_ACCESS_H_
