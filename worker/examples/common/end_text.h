#ifndef WORKER_EXAMPLES_COMMON_END_TEXT_H_
#define WORKER_EXAMPLES_COMMON_END_TEXT_H_

#include <string_view>

#include "worker/worker.h"

namespace baton::examples {

// Returns why a connection ended. `completion` is its kDisconnected or kConnectFailed.
inline std::string_view EndText(const Completion& completion) {
  return completion.status == verbs::CompletionStatus::kSuccess
             ? "disconnected"
             : verbs::CompletionStatusName(completion.status);
}

}  // namespace baton::examples

#endif  // WORKER_EXAMPLES_COMMON_END_TEXT_H_
