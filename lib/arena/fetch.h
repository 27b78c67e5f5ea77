// Prefetches cache lines that a worker and a driver write in turns.
#ifndef LIB_ARENA_FETCH_H_
#define LIB_ARENA_FETCH_H_

namespace baton::arena {

// Fetches for writing a line that the other side has read and cached. For generic x86 the builtin
// would only fetch for reading. Processors without PREFETCHW ignore it.
inline void FetchToWrite(const void* line) {
#if defined(__x86_64__)
  asm volatile("prefetchw %0" : : "m"(*static_cast<const char*>(line)));
#else
  __builtin_prefetch(line, 1);
#endif
}

}  // namespace baton::arena

#endif  // LIB_ARENA_FETCH_H_
