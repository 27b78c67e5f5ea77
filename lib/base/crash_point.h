// Named places at which a test can kill a process. In test builds (BATON_TEST_HOOKS) the variable
// BATON_CRASH_AT="name" or "name:n" of the environment makes the process SIGKILL itself when it
// passes the point for the n-th time, and a simulation can take the place of that; otherwise they
// are nothing.
#ifndef LIB_BASE_CRASH_POINT_H_
#define LIB_BASE_CRASH_POINT_H_

#ifdef BATON_TEST_HOOKS

namespace baton {
void PassCrashPoint(const char* name);
// Called instead from now on, and may throw: what it unwinds has no effect on the arena.
void SetCrashPointHandler(void (*handler)(const char* name));
}  // namespace baton
#define BATON_CRASH_POINT(name) ::baton::PassCrashPoint(name)

#else

#define BATON_CRASH_POINT(name) \
  do {                          \
  } while (false)

#endif

#endif  // LIB_BASE_CRASH_POINT_H_
