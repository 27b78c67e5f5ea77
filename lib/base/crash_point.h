// Named points at which a test can kill a process. In test builds (BATON_TEST_HOOKS) the
// environment variable BATON_CRASH_AT="name" or "name:n" makes the process SIGKILL itself when it
// passes the point for the n-th time. BATON_CRASH_FILE is for processes that a test does not start
// one by one, as native workers are: the path of a file with a CrashPlan, which a test may change
// while they run. A simulation can set a handler instead. In other builds the points do nothing.
#ifndef LIB_BASE_CRASH_POINT_H_
#define LIB_BASE_CRASH_POINT_H_

#include <atomic>
#include <cstdint>

namespace baton {

// The content of BATON_CRASH_FILE, which all processes map that have passed a point. Whoever makes
// the last of `left` passings of the point kills itself.
struct CrashPlan {
  static constexpr uint32_t kNameBytes = 60;

  std::atomic<uint32_t> left;  // 0: nobody dies
  char name[kNameBytes];       // of the point, with a 0 at its end; changed while `left` is 0
};
static_assert(sizeof(CrashPlan) == 64 && std::atomic<uint32_t>::is_always_lock_free);

}  // namespace baton

#ifdef BATON_TEST_HOOKS

namespace baton {
void PassCrashPoint(const char* name);
// From now on each point calls `handler` instead. It may throw, because unwinding does not change
// the arena.
void SetCrashPointHandler(void (*handler)(const char* name));
}  // namespace baton
#define BATON_CRASH_POINT(name) ::baton::PassCrashPoint(name)

#else

#define BATON_CRASH_POINT(name) \
  do {                          \
  } while (false)

#endif

#endif  // LIB_BASE_CRASH_POINT_H_
