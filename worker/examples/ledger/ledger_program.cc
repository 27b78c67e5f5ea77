#include "worker/examples/ledger/ledger_program.h"

#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "lib/base/status.h"
#include "spdlog/sinks/stdout_sinks.h"
#include "spdlog/spdlog.h"
#include "worker/examples/common/flags.h"
#include "worker/examples/common/worker_program.h"

namespace baton::ledger {
namespace {

constexpr char kProgram[] = "ledger";  // its name in its ready line

struct Arguments {
  examples::WorkerFlags worker;
  LedgerServiceOptions ledger;
};

absl::Status Serve(const Arguments& arguments, LedgerProgram& program) {
  BATON_RETURN_IF_ERROR(LedgerService::Validate(arguments.ledger));
  const std::unique_ptr<LedgerService> service = program.MakeService(arguments.ledger);
  WorkerOptions options = examples::OptionsOf(arguments.worker);
  options.version = absl::StrCat("v", arguments.ledger.version);
  options.reads_state_version_min = arguments.ledger.reads_state_version_min;
  options.reads_state_version_max = arguments.ledger.reads_state_version_max;
  options.writes_state_version = arguments.ledger.writes_state_version;
  BATON_ASSIGN_OR_RETURN(const std::unique_ptr<Worker> worker,
                         Worker::Attach(options, service.get()));
  BATON_RETURN_IF_ERROR(service->Fit(worker->capacity()));
  return examples::ServeUntilAsked(*worker, arguments.worker, kProgram, arguments.ledger.version,
                                   [&](uint16_t) { return program.BeforeReady(*worker); });
}

}  // namespace

int LedgerProgram::Main(int argc, char** argv) {
  spdlog::set_default_logger(spdlog::stderr_logger_st(name_));
  spdlog::flush_on(spdlog::level::info);
  Arguments arguments;
  arguments.worker.service = "ledger";
  arguments.ledger.version = version_;
  examples::Flags flags(
      "The ledger: a service on Baton whose replies show every lost or repeated effect.");
  examples::AddWorkerFlags(flags, kProgram, arguments.worker);
  flags.Add("--window", &arguments.ledger.window, "receives kept posted per connection [32]");
  flags.Add("--message-size", &arguments.ledger.message_bytes, "largest request in bytes [64]");
#ifdef BATON_TEST_HOOKS
  flags.Add("--crash-on-amount", &arguments.ledger.crash_on_amount,
            "a request of this amount kills the process");
  flags.Add("--hang-on-amount", &arguments.ledger.hang_on_amount,
            "a request of this amount is dealt with for ever");
#endif
  AddFlags(flags, arguments.ledger);
  if (const std::optional<int> exit_status = flags.Parse(argc, argv)) return *exit_status;

  const absl::Status status = Serve(arguments, *this);
  if (status.ok()) return 0;
  spdlog::error("{}", std::string(status.message()));
  return 1;
}

}  // namespace baton::ledger
