// Pauses between two looks at memory that another processor is about to write.
#ifndef LIB_WAITING_PAUSE_H_
#define LIB_WAITING_PAUSE_H_

#include <cstdint>

namespace baton {

// The number of looks that a wait makes before it first yields its processor: half a microsecond.
// The other side answers within that if it is awake, and a thread that needs the processor does not
// wait longer than a wake-up takes.
inline constexpr uint32_t kLooksBeforeYield = 24;

inline void Pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace baton

#endif  // LIB_WAITING_PAUSE_H_
