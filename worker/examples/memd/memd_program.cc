#include "worker/examples/memd/memd_program.h"

#include <memory>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "lib/base/status.h"
#include "spdlog/sinks/stdout_sinks.h"
#include "spdlog/spdlog.h"
#include "worker/examples/common/worker_program.h"
#include "worker/examples/memd/memd_service.h"

namespace baton::memd {
namespace {

constexpr char kProgram[] = "memd";  // its name in its ready line

struct Flags {
  examples::WorkerFlags worker;
  MemdServiceOptions memd;
};

absl::Status Serve(const Flags& flags) {
  MemdService service(flags.memd);
  WorkerOptions options = examples::OptionsOf(flags.worker);
  options.version = absl::StrCat("v", flags.memd.version);
  options.reads_state_version_min = options.reads_state_version_max = kStateVersion;
  options.writes_state_version = kStateVersion;
  options.commit_mode = CommitMode::kAfterEachCompletion;
  BATON_ASSIGN_OR_RETURN(const std::unique_ptr<Worker> worker, Worker::Attach(options, &service));
  BATON_RETURN_IF_ERROR(service.Begin(*worker));
  return examples::ServeUntilAsked(*worker, flags.worker, kProgram, flags.memd.version,
                                   [](uint16_t) { return absl::OkStatus(); });
}

}  // namespace

int Main(uint32_t version, int argc, char** argv) {
  const std::string name = "memd-v" + std::to_string(version);
  spdlog::set_default_logger(spdlog::stderr_logger_st(name));
  spdlog::flush_on(spdlog::level::info);
  Flags flags;
  flags.worker.service = kProgram;
  flags.memd.version = version;
  CLI::App app{"memd: remote memory with leases, as a service on Baton."};
  examples::AddWorkerFlags(app, kProgram, flags.worker);
  app.add_option("--most-leases", flags.memd.most_leases,
                 "of a client; connection_state_bytes may allow fewer [64]")
      ->check(CLI::Range(uint32_t{1}, Leases::kMostLeases));
  app.add_option("--most-bytes", flags.memd.most_bytes, "of all leases of a client [1 GiB]")
      ->check(CLI::Range(uint64_t{1}, uint64_t{1} << 36));
  CLI11_PARSE(app, argc, argv);

  const absl::Status status = Serve(flags);
  if (status.ok()) return 0;
  spdlog::error("{}", std::string(status.message()));
  return 1;
}

}  // namespace baton::memd
