// Which process the kernel kills when memory runs out: that with the most memory, and a score of
// its own on top (oom_score_adj of proc(5)). Processes that are started inherit the score.
#ifndef LIB_BASE_MEMORY_SHORTAGE_H_
#define LIB_BASE_MEMORY_SHORTAGE_H_

namespace baton {

inline constexpr int kFirstToGo = 500, kLastToGo = -900;

// The kernel kills this process before others. Needs no right.
void GoFirstWhenMemoryIsShort();

// The kernel kills this process after all others. Needs CAP_SYS_RESOURCE: without it, the score
// stays as it is.
void GoLastWhenMemoryIsShort();

// Ends what the process that started this one has of GoLastWhenMemoryIsShort(). If this process has
// CAP_SYS_RESOURCE now, it cannot go last again once it has dropped it.
void GoLikeOthersWhenMemoryIsShort();

}  // namespace baton

#endif  // LIB_BASE_MEMORY_SHORTAGE_H_
