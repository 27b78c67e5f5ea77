// baton-control: serves operators and workers over gRPC. Reads its configuration
// (baton.internal.ControlConfig, text format) on standard input. SIGTERM ends it.
#include <malloc.h>
#include <signal.h>
#include <sys/prctl.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <iterator>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "grpc/support/log.h"
#include "lib/base/file_descriptor.h"
#include "lib/base/memory_shortage.h"
#include "lib/base/program_start.h"
#include "lib/base/version.h"
#include "lib/log/log.h"
#include "lib/log/standard_error.h"
#include "spdlog/spdlog.h"
#include "supervisor/config/control_socket.h"
#include "supervisor/config/log_level.h"
#include "supervisor/control/config.h"
#include "supervisor/control/control_server.h"
#include "supervisor/control/log_budget.h"
#include "supervisor/control/sandbox.h"

namespace {

constexpr char kHelp[] =
    "usage: baton-control [--help | --version]\n"
    "Serves the operators and workers of Baton over gRPC on UNIX sockets in state_dir.\n"
    "batond starts it. It reads a baton.internal.ControlConfig in text format on standard\n"
    "input, logs to standard error, and ends on SIGTERM or SIGINT.\n"
    "Exit codes: 0 ended by a signal, 1 could not serve, 2 bad usage or configuration.\n";

// gRPC's threads come and go, and glibc would give them up to eight arenas for each processor. The
// memory that calls free would be spread over all arenas, and the process would grow for hours.
// With few arenas, threads rarely wait for each other, because they mostly wait for the network.
constexpr int kAllocatorArenas = 2;

// Logs gRPC's messages, for example about failed handshakes. Peers cause them, so they are bounded.
void LogOfGrpc(gpr_log_func_args* line) {
  static baton::LogBudget budget;
  if (const std::optional<uint64_t> suppressed = budget.Take()) {
    spdlog::warn("gRPC: {} ({} more not logged)", line->message, *suppressed);
  }
}

// Takes a descriptor that batond has started control with, and removes the variable.
baton::FileDescriptor Given(const char* variable) {
  baton::FileDescriptor descriptor = baton::GivenDescriptor(variable);
  unsetenv(variable);
  return descriptor;
}

// Control goes on when batond dies, if the next batond can find it. Until then the kernel kills it
// with batond, as batond asked at its start.
baton::Readiness OutliveBatond(bool is_found) {
  const bool outlives = is_found && prctl(PR_SET_PDEATHSIG, 0) == 0;
  return outlives ? baton::Readiness::kOutlivesBatond : baton::Readiness::kServes;
}

int Serve(const baton::internal::ControlConfig& config, const sigset_t& end_signals) {
  baton::FromBatond given = {.link = Given(baton::kBatondVariable),
                             .operator_socket = Given(baton::kOperatorSocketVariable),
                             .worker_socket = Given(baton::kWorkerSocketVariable),
                             .lock = Given(baton::kControlLockVariable),
                             .stay = Given(baton::kStayVariable)};
  const bool is_found = given.link && given.lock;
  auto server = baton::ControlServer::Start(config, std::chrono::seconds(10), std::move(given));
  if (!server.ok()) {
    spdlog::error("{}", std::string(server.status().message()));
    return 1;
  }
  spdlog::info("baton-control {} serves operators at {} and workers at {}", baton::kRelease,
               baton::OperatorSocketPath(config.state_dir()),
               baton::ControlSocketPath(config.state_dir()));
  baton::TellReady(OutliveBatond(is_found));
  int signal_number = 0;
  sigwait(&end_signals, &signal_number);
  spdlog::info("ends: {}", strsignal(signal_number));
  return 0;
}

int Run(const absl::Status& sandbox, const sigset_t& end_signals) {
  if (!sandbox.ok()) {
    spdlog::error("control does not listen to anybody outside of its sandbox: {}",
                  std::string(sandbox.message()));
    return 1;
  }
  const std::string text{std::istreambuf_iterator<char>(std::cin), {}};
  const auto config = baton::ParseControlConfig(text);
  if (!config.ok()) {
    spdlog::error("{}", std::string(config.status().message()));
    return 2;
  }
  spdlog::default_logger()->set_level(baton::LevelOf(config->log_level()));
  if (config->log_format() == baton::v1::JSON) baton::log::UseJson("control", "");
  gpr_set_log_function(LogOfGrpc);
  return Serve(*config, end_signals);
}

}  // namespace

int main(int argc, char** argv) {
  // batond executes this program by a descriptor, so its name would be that number.
  prctl(PR_SET_NAME, "baton-control");
  if (argc == 2 && std::strcmp(argv[1], "--help") == 0) {
    std::fputs(kHelp, stdout);
    return 0;
  }
  if (argc == 2 && std::strcmp(argv[1], "--version") == 0) {
    std::printf("baton-control %s\n", baton::kRelease);
    return 0;
  }
  if (argc != 1) {
    std::fputs(kHelp, stderr);
    return 2;
  }
  mallopt(M_ARENA_MAX, kAllocatorArenas);
  // Every thread inherits the mask, so that sigwait in the main thread takes the signals.
  sigset_t end_signals;
  sigemptyset(&end_signals);
  sigaddset(&end_signals, SIGTERM);
  sigaddset(&end_signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &end_signals, nullptr);
  baton::GoFirstWhenMemoryIsShort();  // batond starts another, and no connection notices
  // Before the log starts a thread, which would be outside the sandbox.
  const absl::Status sandbox = baton::EnterSandbox();
  baton::log::LogToStandardError("control", baton::log::LogThread::kOwn);
  const int result = Run(sandbox, end_signals);
  baton::log::EndLog();
  return result;
}
