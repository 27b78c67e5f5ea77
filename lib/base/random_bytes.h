// Bytes that nobody can guess: keys, tokens, and what tells two attempts apart.
#ifndef LIB_BASE_RANDOM_BYTES_H_
#define LIB_BASE_RANDOM_BYTES_H_

#include <sys/random.h>

#include <cstddef>
#include <string>

namespace baton {

// Bytes of the token that a keeper makes for a worker, and the worker shows to control.
inline constexpr size_t kWorkerTokenBytes = 16;

// REQUIRES: count <= 256. The kernel never returns fewer than that (getrandom(2)). Any thread.
inline std::string RandomBytes(size_t count) {
  std::string bytes(count, '\0');
  (void)!getrandom(bytes.data(), bytes.size(), 0);
  return bytes;
}

}  // namespace baton

#endif  // LIB_BASE_RANDOM_BYTES_H_
