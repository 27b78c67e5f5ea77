// The Connect command, which makes controllers and their queues.
#ifndef WORKER_EXAMPLES_NVMED_CONNECT_H_
#define WORKER_EXAMPLES_NVMED_CONNECT_H_

#include <cstdint>

#include "worker/examples/nvmed/controller.h"
#include "worker/examples/nvmed/nvme_data.h"
#include "worker/examples/nvmed/registry.h"
#include "worker/examples/nvmed/state.h"
#include "worker/examples/nvmed/target.h"

namespace baton::nvmed {

// Makes a controller, or adds a queue to one.
struct ConnectRequest {
  ConnectCommand command;
  ConnectData data;
  uint16_t queue_id = 0;  // as in the connection's private data
  uint16_t entries = 0;   // likewise
  uint32_t connection = 0, generation = 0;
};
// With kSuccess `*controller` becomes the controller to which the queue belongs now.
Answer Connect(const ConnectRequest& request, const ControllerOptions& options, Target& target,
               Registry& registry, ControllerState** controller);

}  // namespace baton::nvmed

#endif  // WORKER_EXAMPLES_NVMED_CONNECT_H_
