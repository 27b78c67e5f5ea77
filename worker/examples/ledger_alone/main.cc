// ledger-baseline: the ledger without Baton, for comparison.
#include <fcntl.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "lib/base/errno_status.h"
#include "lib/base/realtime.h"
#include "lib/base/status_macros.h"
#include "spdlog/sinks/stdout_sinks.h"
#include "spdlog/spdlog.h"
#include "worker/examples/common/address.h"
#include "worker/examples/common/ballast.h"
#include "worker/examples/common/device_factory.h"
#include "worker/examples/ledger_alone/baseline_server.h"

namespace baton::ledger {
namespace {

BaselineServer* g_server = nullptr;  // for the signal handler

struct Flags {
  std::string listen;
  std::string device = "soft";
  int wait_for_pid = 0;
  int realtime_priority = 0;
  uint32_t ballast_mib = 0;
  BaselineOptions server;
};

void TakeSignals(BaselineServer* server) {
  g_server = server;
  struct sigaction action = {};
  action.sa_handler = [](int) { g_server->Stop(); };
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGINT, &action, nullptr);
  action.sa_handler = [](int) { g_server->TellToMove(); };
  sigaction(SIGUSR1, &action, nullptr);
}

void Tell(const std::string& line) {
  std::puts(line.c_str());
  std::fflush(stdout);
}

absl::Status Serve(Flags flags) {
  BATON_ASSIGN_OR_RETURN(flags.server.listen, examples::ParseAddress(flags.listen));
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<verbs::Device> device, examples::OpenDevice(flags.device));
  BATON_ASSIGN_OR_RETURN(const std::unique_ptr<BaselineServer> server,
                         BaselineServer::Create(std::move(device), flags.server));
  BATON_RETURN_IF_ERROR(examples::TakeBallast(flags.ballast_mib));
  if (flags.realtime_priority > 0) {
    BATON_RETURN_IF_ERROR(UseRealtimePriority(flags.realtime_priority));
  }
  if (flags.wait_for_pid > 0) {
    const FileDescriptor pidfd(static_cast<int>(syscall(SYS_pidfd_open, flags.wait_for_pid, 0)));
    if (!pidfd && errno != ESRCH) {
      return ErrnoStatus(errno, absl::StrCat("cannot watch process ", flags.wait_for_pid));
    }
    Tell("ledger-baseline warm");
    if (pidfd) BATON_RETURN_IF_ERROR(BaselineServer::WaitForEnd(pidfd));
  }
  BATON_ASSIGN_OR_RETURN(const uint16_t port, server->Listen());
  TakeSignals(server.get());
  Tell(absl::StrCat("ledger-baseline ready port=", port));
  absl::Status status = server->Run();
  signal(SIGUSR1, SIG_IGN);
  signal(SIGTERM, SIG_DFL);
  signal(SIGINT, SIG_DFL);
  return status;
}

int Main(int argc, char** argv) {
  spdlog::set_default_logger(spdlog::stderr_logger_st("ledger-baseline"));
  Flags flags;
  CLI::App app{
      "The ledger on a device of its own, without Baton. Prints \"ledger-baseline warm\" when it "
      "waits for its predecessor, and \"ledger-baseline ready port=N\" when it listens. SIGUSR1: "
      "it tells its peers to go on elsewhere."};
  app.add_option("--listen", flags.listen, "HOST:PORT")->required();
  app.add_option("--device", flags.device, "soft, rdma, or rdma:NAME [soft]");
  app.add_option("--wait-for-pid", flags.wait_for_pid,
                 "be warm, and listen as soon as this process has ended");
  app.add_option("--connections", flags.server.connections, "at once, at most [64]");
  app.add_option("--window", flags.server.window, "receives posted per connection [32]");
  app.add_option("--message-size", flags.server.message_bytes, "largest request in bytes [64]");
  app.add_option("--realtime-priority", flags.realtime_priority, "of the serving thread [0: none]");
  app.add_option("--ballast-mib", flags.ballast_mib, "memory to map and touch besides [0]");
  app.add_option("--reply-version", flags.server.version, "told in every reply [1]");
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = Serve(flags);
  if (status.ok()) return 0;
  spdlog::error("{}", std::string(status.message()));
  return 1;
}

}  // namespace
}  // namespace baton::ledger

int main(int argc, char** argv) { return baton::ledger::Main(argc, argv); }
