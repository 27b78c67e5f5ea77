#ifndef WORKER_EXAMPLES_NVMED_ANSWER_H_
#define WORKER_EXAMPLES_NVMED_ANSWER_H_

#include <cstdint>

#include "worker/examples/nvmed/nvme_spec.h"
#include "worker/examples/nvmed/state.h"

namespace baton::nvmed {

// How a command ends.
struct Answer {
  StatusCode status = StatusCode::kSuccess;
  uint64_t result = 0;
  bool held = false;  // answered later: an Asynchronous Event Request
  // Held requests that end with this command. If `answer_released`, each is answered with
  // kAbortRequested, else none is answered.
  uint32_t released = 0;
  bool answer_released = false;
  HeldEvent release[kMaxHeldEvents] = {};
};

inline Answer Refuse(StatusCode status) {
  Answer answer;
  answer.status = status;
  return answer;
}

inline Answer Return(uint64_t result) {
  Answer answer;
  answer.result = result;
  return answer;
}

}  // namespace baton::nvmed

#endif  // WORKER_EXAMPLES_NVMED_ANSWER_H_
