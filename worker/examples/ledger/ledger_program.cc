#include "worker/examples/ledger/ledger_program.h"

#include <string>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "lib/base/status.h"
#include "spdlog/sinks/stdout_sinks.h"
#include "spdlog/spdlog.h"
#include "worker/examples/common/worker_program.h"

namespace baton::ledger {
namespace {

constexpr char kProgram[] = "ledger";  // its name in its ready line

struct Flags {
  examples::WorkerFlags worker;
  LedgerServiceOptions ledger;
};

absl::Status Serve(const Flags& flags, LedgerProgram& program) {
  BATON_RETURN_IF_ERROR(LedgerService::Validate(flags.ledger));
  const std::unique_ptr<LedgerService> service = program.MakeService(flags.ledger);
  WorkerOptions options = examples::OptionsOf(flags.worker);
  options.version = absl::StrCat("v", flags.ledger.version);
  options.reads_state_version_min = flags.ledger.reads_state_version_min;
  options.reads_state_version_max = flags.ledger.reads_state_version_max;
  options.writes_state_version = flags.ledger.writes_state_version;
  BATON_ASSIGN_OR_RETURN(const std::unique_ptr<Worker> worker,
                         Worker::Attach(options, service.get()));
  BATON_RETURN_IF_ERROR(service->Fit(worker->capacity()));
  return examples::ServeUntilAsked(*worker, flags.worker, kProgram, flags.ledger.version,
                                   [&](uint16_t) { return program.BeforeReady(*worker); });
}

}  // namespace

int LedgerProgram::Main(int argc, char** argv) {
  spdlog::set_default_logger(spdlog::stderr_logger_st(name_));
  spdlog::flush_on(spdlog::level::info);
  Flags flags;
  flags.worker.service = "ledger";
  flags.ledger.version = version_;
  CLI::App app{"The ledger: a service on Baton whose replies show every lost or repeated effect."};
  examples::AddWorkerFlags(app, kProgram, flags.worker);
  app.add_option("--window", flags.ledger.window, "receives kept posted per connection [32]");
  app.add_option("--message-size", flags.ledger.message_bytes, "largest request in bytes [64]");
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
