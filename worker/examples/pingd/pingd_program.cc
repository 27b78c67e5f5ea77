#include "worker/examples/pingd/pingd_program.h"

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
#include "worker/examples/pingd/ping_service.h"

namespace baton::pingd {
namespace {

constexpr char kProgram[] = "pingd";  // its name in its ready line

struct Arguments {
  examples::WorkerFlags worker;
  std::string protocol = "rping";
  PingServiceOptions ping;
};

absl::Status Serve(const Arguments& arguments) {
  PingServiceOptions ping = arguments.ping;
  ping.protocol = arguments.protocol == "rping" ? Protocol::kRping : Protocol::kRdmaClient;
  PingService service(ping);
  WorkerOptions options = examples::OptionsOf(arguments.worker);
  options.version = absl::StrCat("v", ping.version);
  options.reads_state_version_min = options.reads_state_version_max = kPositionStateVersion;
  options.writes_state_version = kPositionStateVersion;
  options.commit_mode = CommitMode::kAfterEachCompletion;
  BATON_ASSIGN_OR_RETURN(const std::unique_ptr<Worker> worker, Worker::Attach(options, &service));
  BATON_RETURN_IF_ERROR(service.Fit(*worker));
  return examples::ServeUntilAsked(*worker, arguments.worker, kProgram, ping.version,
                                   [](uint16_t) { return absl::OkStatus(); });
}

}  // namespace

int Main(uint32_t version, int argc, char** argv) {
  const std::string name = "pingd-v" + std::to_string(version);
  spdlog::set_default_logger(spdlog::stderr_logger_st(name));
  spdlog::flush_on(spdlog::level::info);
  Arguments arguments;
  arguments.worker.service = kProgram;
  arguments.ping.version = version;
  examples::Flags flags(
      "pingd: the server's side of rping and rdma_client, as a service on Baton.");
  examples::AddWorkerFlags(flags, kProgram, arguments.worker);
  flags.Add("--protocol", &arguments.protocol, "whose server it is: rping or rdma_client [rping]")
      .OneOf({"rping", "rdma_client"});
  flags
      .Add("--max-size", &arguments.ping.max_data_bytes,
           "most bytes that rping -S may ask for [65536]")
      .Within(uint64_t{1}, uint64_t{1} << 30);
#ifdef BATON_TEST_HOOKS
  flags.Add("--fault", &arguments.ping.fault,
            "lose-read, lose-write, repeat-read, repeat-write, repeat-message");
  flags.Add("--fault-at", &arguments.ping.fault_at, "number of the message that --fault is about");
#endif
  if (const std::optional<int> exit_status = flags.Parse(argc, argv)) return *exit_status;

  const absl::Status status = Serve(arguments);
  if (status.ok()) return 0;
  spdlog::error("{}", std::string(status.message()));
  return 1;
}

}  // namespace baton::pingd
