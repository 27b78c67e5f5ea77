// The flags that worker programs have in common.
#ifndef WORKER_EXAMPLES_COMMON_WORKER_PROGRAM_H_
#define WORKER_EXAMPLES_COMMON_WORKER_PROGRAM_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "worker/examples/common/flags.h"
#include "worker/worker.h"

namespace baton::examples {

struct WorkerFlags {
  std::string socket;
  std::string service;
  std::string listen;
  std::string name;
  int realtime_priority = 0;
  bool take_over = false;
  int ready_fd = -1;
};

// `program`: its name in its ready line.
void AddWorkerFlags(Flags& flags, const std::string& program, WorkerFlags& worker);

// Returns options with what the flags say; the program sets the rest.
WorkerOptions OptionsOf(const WorkerFlags& flags);

// Listens, reports to the process that started this one that the worker is ready for shards
// ("<program> ready version=V worker=ID port=PORT"), and serves until SIGTERM, SIGINT or a shutdown
// notice. One worker at a time. Calls `before_ready` before the worker is ready, with the port, or
// 0 without --listen.
using BeforeReady = std::function<absl::Status(uint16_t port)>;
absl::Status ServeUntilAsked(Worker& worker, const WorkerFlags& flags, const std::string& program,
                             uint32_t version, const BeforeReady& before_ready);
// The same with `loop` in place of Worker::Run. It polls until its argument becomes true or the
// service's OnShutdown is called. Its shards are released when the worker is destroyed.
absl::Status ServeUntilAsked(Worker& worker, const WorkerFlags& flags, const std::string& program,
                             uint32_t version, const BeforeReady& before_ready,
                             const std::function<absl::Status(const std::atomic<bool>&)>& loop);

}  // namespace baton::examples

#endif  // WORKER_EXAMPLES_COMMON_WORKER_PROGRAM_H_
