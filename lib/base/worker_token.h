#ifndef LIB_BASE_WORKER_TOKEN_H_
#define LIB_BASE_WORKER_TOKEN_H_

#include <cstddef>

namespace baton {

// Bytes of the token that a keeper makes for a worker, and the worker shows to control.
inline constexpr size_t kWorkerTokenBytes = 16;

}  // namespace baton

#endif  // LIB_BASE_WORKER_TOKEN_H_
