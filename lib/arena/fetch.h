// Cache lines that change hands between a worker and a driver, on their way before they are needed.
#ifndef LIB_ARENA_FETCH_H_
#define LIB_ARENA_FETCH_H_

namespace baton::arena {

// The other side has read it, and has it in its cache. For x86 the compiler has this instruction
// only for processors that it is told of, and would fetch to read; what does not know it ignores
// it.
inline void FetchToWrite(const void* line) {
#if defined(__x86_64__)
  asm volatile("prefetchw %0" : : "m"(*static_cast<const char*>(line)));
#else
  __builtin_prefetch(line, 1);
#endif
}

}  // namespace baton::arena

#endif  // LIB_ARENA_FETCH_H_
