#include "worker/examples/memd/memd_program.h"

#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "lib/base/status.h"
#include "spdlog/sinks/stdout_sinks.h"
#include "spdlog/spdlog.h"
#include "worker/examples/common/flags.h"
#include "worker/examples/common/worker_program.h"
#include "worker/examples/memd/memd_service.h"

namespace baton::memd {
namespace {

constexpr char kProgram[] = "memd";  // its name in its ready line

struct Arguments {
  examples::WorkerFlags worker;
  MemdServiceOptions memd;
};

absl::Status Serve(const Arguments& arguments) {
  MemdService service(arguments.memd);
  WorkerOptions options = examples::OptionsOf(arguments.worker);
  options.version = absl::StrCat("v", arguments.memd.version);
  options.reads_state_version_min = options.reads_state_version_max = kStateVersion;
  options.writes_state_version = kStateVersion;
  options.commit_mode = CommitMode::kAfterEachCompletion;
  BATON_ASSIGN_OR_RETURN(const std::unique_ptr<Worker> worker, Worker::Attach(options, &service));
  BATON_RETURN_IF_ERROR(service.Begin(*worker));
  return examples::ServeUntilAsked(*worker, arguments.worker, kProgram, arguments.memd.version,
                                   [](uint16_t) { return absl::OkStatus(); });
}

}  // namespace

int Main(uint32_t version, int argc, char** argv) {
  const std::string name = "memd-v" + std::to_string(version);
  spdlog::set_default_logger(spdlog::stderr_logger_st(name));
  spdlog::flush_on(spdlog::level::info);
  Arguments arguments;
  arguments.worker.service = kProgram;
  arguments.memd.version = version;
  examples::Flags flags("memd: remote memory with leases, as a service on Baton.");
  examples::AddWorkerFlags(flags, kProgram, arguments.worker);
  flags
      .Add("--most-leases", &arguments.memd.most_leases,
           "of a client; connection_state_bytes may allow fewer [64]")
      .Within(uint64_t{1}, uint64_t{Leases::kMostLeases});
  flags.Add("--most-bytes", &arguments.memd.most_bytes, "of all leases of a client [1 GiB]")
      .Within(uint64_t{1}, uint64_t{1} << 36);
  if (const std::optional<int> exit_status = flags.Parse(argc, argv)) return *exit_status;

  const absl::Status status = Serve(arguments);
  if (status.ok()) return 0;
  spdlog::error("{}", std::string(status.message()));
  return 1;
}

}  // namespace baton::memd
