#include "worker/examples/nvmed/nvmed_program.h"

#include <poll.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "spdlog/sinks/stdout_sinks.h"
#include "spdlog/spdlog.h"
#include "worker/examples/common/device_factory.h"
#include "worker/examples/common/worker_program.h"
#include "worker/examples/nvmed/state.h"
#include "worker/examples/nvmed/target.h"
#include "worker/examples/nvmed/target_service.h"
#include "worker/worker.h"

namespace baton::nvmed {
namespace {

constexpr char kProgram[] = "nvmed";  // its name in its ready line

struct Flags {
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

absl::Status Serve(const Flags& flags) {
  BATON_ASSIGN_OR_RETURN(TargetConfig config, ReadConfiguration(flags.config));
  // The address that hosts are told to connect to.
  if (!flags.worker.listen.empty()) {
    BATON_ASSIGN_OR_RETURN(const verbs::Address address,
                           examples::ParseAddress(flags.worker.listen));
    if (config.address().empty()) config.set_address(address.host);
  }
  const bool port_configured = config.port() != 0;
  const std::string version = absl::StrCat("v", flags.version);
  TargetService service(std::move(config), version);
  service.SetFault(flags.fault);
  WorkerOptions options = examples::OptionsOf(flags.worker);
  options.version = version;
  options.reads_state_version_min = options.reads_state_version_max = kStateVersion;
  options.writes_state_version = kStateVersion;
  options.commit_mode = CommitMode::kManual;
  BATON_ASSIGN_OR_RETURN(const std::unique_ptr<Worker> worker, Worker::Attach(options, &service));
  BATON_RETURN_IF_ERROR(service.Fit(*worker));
  return examples::ServeUntilAsked(
      *worker, flags.worker, kProgram, flags.version,
      [&](uint16_t port) {
        if (!port_configured) service.SetPort(port);
        return absl::OkStatus();
      },
      [&](const std::atomic<bool>& stop) {
        if (flags.worker.take_over) BATON_RETURN_IF_ERROR(worker->TakeOver());
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
  Flags flags;
  flags.worker.service = kProgram;
  flags.version = version;
  CLI::App app{"nvmed: an NVMe over Fabrics target on RDMA, as a service on Baton."};
  examples::AddWorkerFlags(app, kProgram, flags.worker);
  app.add_option("--config", flags.config, "its subsystems and namespaces: target_config.proto")
      ->required();
#ifdef BATON_TEST_HOOKS
  app.add_option("--fault", flags.fault.kind, "lose-response, repeat-response, lose-write");
  app.add_option("--fault-at", flags.fault.at, "number of the occasion that --fault is about");
#endif
  CLI11_PARSE(app, argc, argv);

  const absl::Status status = Serve(flags);
  if (status.ok()) return 0;
  spdlog::error("{}", std::string(status.message()));
  return 1;
}

}  // namespace baton::nvmed
