// Named points at which a test can kill a process. In test builds (BATON_TEST_HOOKS) the
// environment variable BATON_CRASH_AT="name" or "name:n" makes the process SIGKILL itself when it
// passes the point for the n-th time. A simulation can set a handler instead. In other builds the
// points do nothing.
#ifndef LIB_BASE_CRASH_POINT_H_
#define LIB_BASE_CRASH_POINT_H_

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
