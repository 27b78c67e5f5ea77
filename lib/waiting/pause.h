// Between two looks at memory that another processor is about to write.
#ifndef LIB_WAITING_PAUSE_H_
#define LIB_WAITING_PAUSE_H_

#include <cstdint>

namespace baton {

// Looks that are made at once, before a wait gives its processor to others: half a us. The other
// side answers within that, if it is awake; and who needs the processor does not wait longer than
// a wake-up takes.
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
