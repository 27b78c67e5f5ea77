// When memory runs out, the kernel kills the process that has the most of it. A process's score
// counts on top (oom_score_adj of proc(5)), and processes that it starts inherit the score.
#ifndef LIB_BASE_MEMORY_SHORTAGE_H_
#define LIB_BASE_MEMORY_SHORTAGE_H_

namespace baton {

// The kernel kills this process before others. Needs no right.
void GoFirstWhenMemoryIsShort();

// The kernel kills this process after others. Needs CAP_SYS_RESOURCE: without it, the score stays
// as it is. So it does if it is lower already.
void GoLastWhenMemoryIsShort();

// Raises a negative score, which this process has inherited, to 0. If it has CAP_SYS_RESOURCE now,
// it cannot lower the score again once it has dropped that.
void GoLikeOthersWhenMemoryIsShort();

}  // namespace baton

#endif  // LIB_BASE_MEMORY_SHORTAGE_H_
