#include "worker/examples/common/worker_program.h"

#include <signal.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "lib/base/status.h"
#include "worker/examples/common/device_factory.h"

namespace baton::examples {
namespace {

// Used by the signal handler.
Worker* g_worker = nullptr;
std::atomic<bool> g_stop = false;
static_assert(std::atomic<bool>::is_always_lock_free);

absl::Status TellReady(const WorkerFlags& flags, const std::string& program, uint32_t version,
                       uint64_t worker_id, uint16_t port) {
  const std::string line = absl::StrCat(program, " ready version=", version, " worker=", worker_id,
                                        " port=", port, "\n");
  const int fd = flags.ready_fd >= 0 ? flags.ready_fd : STDOUT_FILENO;
  if (write(fd, line.data(), line.size()) != static_cast<ssize_t>(line.size())) {
    return absl::UnavailableError("cannot tell that the worker is ready: its reader is gone");
  }
  return absl::OkStatus();
}

}  // namespace

void AddWorkerFlags(Flags& flags, const std::string& program, WorkerFlags& worker) {
  flags.Add("--socket", &worker.socket, "the service's socket, <state_dir>/<service>.sock")
      .Required();
  flags.Add("--service", &worker.service, "name of the service [" + worker.service + "]");
  flags.Add("--listen", &worker.listen, "HOST:PORT to listen on for the service");
  flags.Add("--name", &worker.name, "shown to operators");
  flags.Add("--realtime-priority", &worker.realtime_priority, "of the serving thread [0: none]");
  flags.Switch("--take-over", &worker.take_over,
               "take the shards over from the workers that serve, as an upgrade");
  flags.Add("--ready-fd", &worker.ready_fd, "where \"" + program + " ready\" is written [stdout]");
}

WorkerOptions OptionsOf(const WorkerFlags& flags) {
  WorkerOptions options;
  options.socket = flags.socket;
  options.service = flags.service;
  options.name = flags.name;
  options.realtime_priority = flags.realtime_priority;
  options.take_over = flags.take_over;
  return options;
}

absl::Status ServeUntilAsked(Worker& worker, const WorkerFlags& flags, const std::string& program,
                             uint32_t version, const BeforeReady& before_ready) {
  return ServeUntilAsked(worker, flags, program, version, before_ready,
                         [&worker](const std::atomic<bool>&) { return worker.Run(); });
}

absl::Status ServeUntilAsked(Worker& worker, const WorkerFlags& flags, const std::string& program,
                             uint32_t version, const BeforeReady& before_ready,
                             const std::function<absl::Status(const std::atomic<bool>&)>& loop) {
  uint16_t port = 0;
  if (!flags.listen.empty()) {
    BATON_ASSIGN_OR_RETURN(const verbs::Address address, ParseAddress(flags.listen));
    BATON_ASSIGN_OR_RETURN(port, worker.Listen(address.host, address.port));
  }
  g_worker = &worker;
  struct sigaction action = {};
  action.sa_handler = [](int) {
    g_stop.store(true);
    g_worker->Stop();
  };
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGINT, &action, nullptr);

  absl::Status status = before_ready(port);
  if (status.ok()) status = worker.Ready();
  if (status.ok()) status = TellReady(flags, program, version, worker.id(), port);
  if (status.ok()) status = loop(g_stop);
  signal(SIGTERM, SIG_DFL);
  signal(SIGINT, SIG_DFL);
  g_worker = nullptr;
  return status;
}

}  // namespace baton::examples
