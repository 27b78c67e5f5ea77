#include "worker/examples/nvmed/nvmed_program.h"

#include <poll.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "spdlog/sinks/stdout_sinks.h"
#include "spdlog/spdlog.h"
#include "worker/examples/common/device_factory.h"
#include "worker/examples/common/flags.h"
#include "worker/examples/common/worker_program.h"
#include "worker/examples/nvmed/state.h"
#include "worker/examples/nvmed/target.h"
#include "worker/examples/nvmed/target_service.h"
#include "worker/worker.h"

namespace baton::nvmed {
namespace {

constexpr char kProgram[] = "nvmed";  // its name in its ready line

struct Arguments {
  examples::WorkerFlags worker;
  std::string config;
  Fault fault;
  uint32_t version = 0;
};

// Returns the time until the service's deadline in ms; -1: it has none.
int MillisecondsUntil(uint64_t deadline, uint64_t now) {
  if (deadline == UINT64_MAX) return -1;
  if (deadline <= now) return 0;
  return static_cast<int>(std::min<uint64_t>((deadline - now) / 1'000'000 + 1, 60'000));
}

absl::Status Loop(Worker& worker, TargetService& service, const std::atomic<bool>& stop) {
  uint64_t now = MonotonicNanoseconds();
  while (!stop.load(std::memory_order_relaxed) && !service.stopping()) {
    service.BeginTurn(now);
    BATON_ASSIGN_OR_RETURN(const int work, worker.Poll());
    now = MonotonicNanoseconds();
    service.EndTurn(now);
    if (work == 0) {
      BATON_RETURN_IF_ERROR(worker.Wait(MillisecondsUntil(service.next_deadline(), now)));
      now = MonotonicNanoseconds();
    }
  }
  return absl::OkStatus();
}

absl::Status Serve(const Arguments& arguments) {
  BATON_ASSIGN_OR_RETURN(TargetConfig config, ReadConfiguration(arguments.config));
  // The address that hosts are told to connect to.
  if (!arguments.worker.listen.empty()) {
    BATON_ASSIGN_OR_RETURN(const verbs::Address address,
                           examples::ParseAddress(arguments.worker.listen));
    if (config.address().empty()) config.set_address(address.host);
  }
  const bool port_configured = config.port() != 0;
  const std::string version = absl::StrCat("v", arguments.version);
  TargetService service(std::move(config), version);
  service.SetFault(arguments.fault);
  WorkerOptions options = examples::OptionsOf(arguments.worker);
  options.version = version;
  options.reads_state_version_min = options.reads_state_version_max = kStateVersion;
  options.writes_state_version = kStateVersion;
  options.commit_mode = CommitMode::kManual;
  BATON_ASSIGN_OR_RETURN(const std::unique_ptr<Worker> worker, Worker::Attach(options, &service));
  BATON_RETURN_IF_ERROR(service.Fit(*worker));
  return examples::ServeUntilAsked(
      *worker, arguments.worker, kProgram, arguments.version,
      [&](uint16_t port) {
        if (!port_configured) service.SetPort(port);
        return absl::OkStatus();
      },
      [&](const std::atomic<bool>& stop) {
        if (arguments.worker.take_over) BATON_RETURN_IF_ERROR(worker->TakeOver());
        absl::Status status = Loop(*worker, service, stop);
        service.Quiesce();
        return status;
      });
}

}  // namespace

int Main(uint32_t version, int argc, char** argv) {
  const std::string name = "nvmed-v" + std::to_string(version);
  spdlog::set_default_logger(spdlog::stderr_logger_st(name));
  spdlog::flush_on(spdlog::level::info);
  Arguments arguments;
  arguments.worker.service = kProgram;
  arguments.version = version;
  examples::Flags flags("nvmed: an NVMe over Fabrics target on RDMA, as a service on Baton.");
  examples::AddWorkerFlags(flags, kProgram, arguments.worker);
  flags.Add("--config", &arguments.config, "its subsystems and namespaces: target_config.proto")
      .Required();
#ifdef BATON_TEST_HOOKS
  flags.Add("--fault", &arguments.fault.kind, "lose-response, repeat-response, lose-write");
  flags.Add("--fault-at", &arguments.fault.at, "number of the occasion that --fault is about");
#endif
  if (const std::optional<int> exit_status = flags.Parse(argc, argv)) return *exit_status;

  const absl::Status status = Serve(arguments);
  if (status.ok()) return 0;
  spdlog::error("{}", std::string(status.message()));
  return 1;
}

}  // namespace baton::nvmed
