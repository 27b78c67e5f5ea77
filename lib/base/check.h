// BATON_CHECK prints the broken invariant and aborts. It is for defects of Baton, never for input,
// and not for the worker library, which must not abort its host.
#ifndef LIB_BASE_CHECK_H_
#define LIB_BASE_CHECK_H_

#include <cstdio>
#include <cstdlib>

#define BATON_CHECK(condition)                                                               \
  do {                                                                                       \
    if (!(condition)) [[unlikely]] {                                                         \
      std::fprintf(stderr, "%s:%d: broken invariant: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                          \
    }                                                                                        \
  } while (false)

#endif  // LIB_BASE_CHECK_H_
