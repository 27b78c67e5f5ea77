#include "worker/examples/ledger/ledger_program.h"

#include <signal.h>
#include <unistd.h>

#include <string>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "lib/base/status_macros.h"
#include "spdlog/sinks/stdout_sinks.h"
#include "spdlog/spdlog.h"
#include "worker/examples/common/address.h"

namespace baton::ledger {
namespace {

Worker* g_worker = nullptr;  // for the signal handler

struct Flags {
  std::string socket;
  std::string service = "ledger";
  std::string listen;
  std::string name;
  int realtime_priority = 0;
  int ready_fd = -1;
  LedgerServiceOptions ledger;
};

// Tells whoever started us that shards may be given to us now.
absl::Status TellReady(const Flags& flags, uint16_t port, uint64_t worker_id) {
  const std::string line = absl::StrCat("ledger ready version=", flags.ledger.version,
                                        " worker=", worker_id, " port=", port, "\n");
  const int fd = flags.ready_fd >= 0 ? flags.ready_fd : STDOUT_FILENO;
  if (write(fd, line.data(), line.size()) != static_cast<ssize_t>(line.size())) {
    return absl::UnavailableError("cannot tell that the worker is ready: its reader is gone");
  }
  return absl::OkStatus();
}

absl::Status Serve(const Flags& flags, LedgerProgram& program) {
  BATON_RETURN_IF_ERROR(LedgerService::Validate(flags.ledger));
  const std::unique_ptr<LedgerService> service = program.MakeService(flags.ledger);
  WorkerOptions options;
  options.socket = flags.socket;
  options.service = flags.service;
  options.name = flags.name;
  options.realtime_priority = flags.realtime_priority;
  options.version = absl::StrCat("v", flags.ledger.version);
  options.reads_state_version_min = flags.ledger.reads_state_version_min;
  options.reads_state_version_max = flags.ledger.reads_state_version_max;
  options.writes_state_version = flags.ledger.writes_state_version;
  BATON_ASSIGN_OR_RETURN(const std::unique_ptr<Worker> worker,
                         Worker::Attach(options, service.get()));
  BATON_RETURN_IF_ERROR(service->Fit(worker->capacity()));

  uint16_t port = 0;
  if (!flags.listen.empty()) {
    BATON_ASSIGN_OR_RETURN(const verbs::Address address, examples::ParseAddress(flags.listen));
    BATON_ASSIGN_OR_RETURN(port, worker->Listen(address.host, address.port));
  }
  g_worker = worker.get();
  struct sigaction action = {};
  action.sa_handler = [](int) { g_worker->Stop(); };
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGINT, &action, nullptr);

  absl::Status status = program.BeforeReady(*worker);
  if (status.ok()) status = worker->Ready();
  if (status.ok()) status = TellReady(flags, port, worker->id());
  if (status.ok()) status = worker->Run();
  signal(SIGTERM, SIG_DFL);
  signal(SIGINT, SIG_DFL);
  g_worker = nullptr;
  return status;
}

}  // namespace

int LedgerProgram::Main(int argc, char** argv) {
  spdlog::set_default_logger(spdlog::stderr_logger_st(name_));
  spdlog::flush_on(spdlog::level::info);
  Flags flags;
  flags.ledger.version = version_;
  CLI::App app{"The ledger: a service on Baton whose replies show every lost or repeated effect."};
  app.add_option("--socket", flags.socket, "the service's socket, <state_dir>/<service>.sock")
      ->required();
  app.add_option("--service", flags.service, "name of the service [ledger]");
  app.add_option("--listen", flags.listen, "HOST:PORT to listen on for the service");
  app.add_option("--window", flags.ledger.window, "receives kept posted per connection [32]");
  app.add_option("--message-size", flags.ledger.message_bytes, "largest request in bytes [64]");
  app.add_option("--name", flags.name, "shown to operators");
  app.add_option("--realtime-priority", flags.realtime_priority, "of the serving thread [0: none]");
  app.add_option("--ready-fd", flags.ready_fd, "where \"ledger ready\" is written [stdout]");
#ifdef BATON_TEST_HOOKS
  app.add_option("--crash-on-amount", flags.ledger.crash_on_amount,
                 "a request of this amount kills the process");
  app.add_option("--hang-on-amount", flags.ledger.hang_on_amount,
                 "a request of this amount is dealt with for ever");
#endif
  AddFlags(app, flags.ledger);
  CLI11_PARSE(app, argc, argv);

  const absl::Status status = Serve(flags, *this);
  if (status.ok()) return 0;
  spdlog::error("{}", std::string(status.message()));
  return 1;
}

}  // namespace baton::ledger
