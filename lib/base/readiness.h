#ifndef LIB_BASE_READINESS_H_
#define LIB_BASE_READINESS_H_

#include <unistd.h>

#include <cstdlib>

namespace baton {

// Tells the process that started us, through the descriptor in BATON_READY_FD, that we serve.
// Nobody listening is no error.
inline void TellReady() {
  const char* text = std::getenv("BATON_READY_FD");
  if (!text) return;
  const int fd = std::atoi(text);
  const char byte = 1;
  if (write(fd, &byte, 1) == 1) close(fd);
  unsetenv("BATON_READY_FD");
}

}  // namespace baton

#endif  // LIB_BASE_READINESS_H_
