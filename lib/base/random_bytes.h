// Bytes that nobody can guess, for keys, for tokens, and to tell two attempts apart.
#ifndef LIB_BASE_RANDOM_BYTES_H_
#define LIB_BASE_RANDOM_BYTES_H_

#include <sys/random.h>

#include <cstddef>
#include <string>

namespace baton {

// The length of the token that a keeper makes for a worker, and that the worker shows to control.
inline constexpr size_t kWorkerTokenBytes = 16;

// Thread-safe. REQUIRES: count <= 256, which the kernel always returns in full (getrandom(2)).
inline std::string RandomBytes(size_t count) {
  std::string bytes(count, '\0');
  (void)!getrandom(bytes.data(), bytes.size(), 0);
  return bytes;
}

}  // namespace baton

#endif  // LIB_BASE_RANDOM_BYTES_H_
