#include "worker/examples/pingd/pingd_program.h"

#include <memory>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "lib/base/status.h"
#include "spdlog/sinks/stdout_sinks.h"
#include "spdlog/spdlog.h"
#include "worker/examples/common/worker_program.h"
#include "worker/examples/pingd/ping_service.h"

namespace baton::pingd {
namespace {

constexpr char kProgram[] = "pingd";  // its name in its ready line

struct Flags {
  examples::WorkerFlags worker;
  std::string protocol = "rping";
  PingServiceOptions ping;
};

absl::Status Serve(const Flags& flags) {
  PingServiceOptions ping = flags.ping;
  ping.protocol = flags.protocol == "rping" ? Protocol::kRping : Protocol::kRdmaClient;
  PingService service(ping);
  WorkerOptions options = examples::OptionsOf(flags.worker);
  options.version = absl::StrCat("v", ping.version);
  options.reads_state_version_min = options.reads_state_version_max = kPositionStateVersion;
  options.writes_state_version = kPositionStateVersion;
  options.commit_mode = CommitMode::kAfterEachCompletion;
  BATON_ASSIGN_OR_RETURN(const std::unique_ptr<Worker> worker, Worker::Attach(options, &service));
  BATON_RETURN_IF_ERROR(service.Fit(*worker));
  return examples::ServeUntilAsked(*worker, flags.worker, kProgram, ping.version,
                                   [](uint16_t) { return absl::OkStatus(); });
}

}  // namespace

int Main(uint32_t version, int argc, char** argv) {
  const std::string name = "pingd-v" + std::to_string(version);
  spdlog::set_default_logger(spdlog::stderr_logger_st(name));
  spdlog::flush_on(spdlog::level::info);
  Flags flags;
  flags.worker.service = kProgram;
  flags.ping.version = version;
  CLI::App app{"pingd: the server's side of rping and rdma_client, as a service on Baton."};
  examples::AddWorkerFlags(app, kProgram, flags.worker);
  app.add_option("--protocol", flags.protocol, "whose server it is: rping or rdma_client [rping]")
      ->check(CLI::IsMember({"rping", "rdma_client"}));
  app.add_option("--max-size", flags.ping.max_data_bytes,
                 "most bytes that rping -S may ask for [65536]")
      ->check(CLI::Range(uint32_t{1}, uint32_t{1} << 30));
#ifdef BATON_TEST_HOOKS
  app.add_option("--fault", flags.ping.fault,
                 "lose-read, lose-write, repeat-read, repeat-write, repeat-message");
  app.add_option("--fault-at", flags.ping.fault_at, "number of the message that --fault is about");
#endif
  CLI11_PARSE(app, argc, argv);

  const absl::Status status = Serve(flags);
  if (status.ok()) return 0;
  spdlog::error("{}", std::string(status.message()));
  return 1;
}

}  // namespace baton::pingd
