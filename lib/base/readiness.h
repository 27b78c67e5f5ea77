#ifndef LIB_BASE_READINESS_H_
#define LIB_BASE_READINESS_H_

#include <unistd.h>

#include <cstdlib>

namespace baton {

// The descriptor through which the process that started us is told. For us alone.
inline constexpr char kReadyVariable[] = "BATON_READY_FD";

// Tells the process that started us that we serve.
// Nobody listening is no error.
inline void TellReady() {
  const char* text = std::getenv(kReadyVariable);
  if (!text) return;
  const int fd = std::atoi(text);
  const char byte = 1;
  if (write(fd, &byte, 1) == 1) close(fd);
  unsetenv(kReadyVariable);
}

}  // namespace baton

#endif  // LIB_BASE_READINESS_H_
