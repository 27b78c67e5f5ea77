// The flags that worker programs have in common.
#ifndef WORKER_EXAMPLES_COMMON_WORKER_PROGRAM_H_
#define WORKER_EXAMPLES_COMMON_WORKER_PROGRAM_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "worker/worker.h"

namespace CLI {
class App;
}  // namespace CLI

namespace baton::examples {

struct WorkerFlags {
  std::string socket;
  std::string service;
  std::string listen;
  std::string name;
  int realtime_priority = 0;
  int ready_fd = -1;
};

// `program`: as it calls itself in its ready line.
void AddWorkerFlags(CLI::App& app, const std::string& program, WorkerFlags& flags);

// Options from the flags; the rest is the program's.
WorkerOptions OptionsOf(const WorkerFlags& flags);

// Listens, tells whoever started us that shards may be given to us now ("<program> ready
// version=V worker=ID port=PORT"), and serves until SIGTERM, SIGINT or a shutdown notice. One
// worker at a time. `before_ready`: attached, and not ready for shards yet; it is given the port, 0
// without --listen.
using BeforeReady = std::function<absl::Status(uint16_t port)>;
absl::Status ServeUntilAsked(Worker& worker, const WorkerFlags& flags, const std::string& program,
                             uint32_t version, const BeforeReady& before_ready);
// `loop`, in the place of Worker::Run: polls until it is told to stop, by its argument or by the
// service's OnShutdown. Whoever destroys the worker then releases its shards.
absl::Status ServeUntilAsked(Worker& worker, const WorkerFlags& flags, const std::string& program,
                             uint32_t version, const BeforeReady& before_ready,
                             const std::function<absl::Status(const std::atomic<bool>&)>& loop);

}  // namespace baton::examples

#endif  // WORKER_EXAMPLES_COMMON_WORKER_PROGRAM_H_
