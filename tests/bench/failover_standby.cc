#include <signal.h>

#include <chrono>
#include <cstdlib>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/status_macros.h"
#include "tests/bench/failover_side.h"
#include "tests/harness/binaries.h"

namespace baton::bench {
namespace {

constexpr std::chrono::seconds kStart{30};

}  // namespace

absl::StatusOr<std::unique_ptr<StandbySide>> StandbySide::Start(const FailoverOptions& options,
                                                                uint32_t connections,
                                                                uint32_t ballast_mib) {
  BATON_ASSIGN_OR_RETURN(harness::TempDirectory directory, harness::TempDirectory::Create());
  std::unique_ptr<StandbySide> side(
      new StandbySide(options, connections, ballast_mib, std::move(directory)));
  BATON_RETURN_IF_ERROR(side->Open());
  return side;
}

absl::Status StandbySide::Open() {
  serving_.version = 1;
  standby_.version = OtherVersion(serving_.version);
  BATON_RETURN_IF_ERROR(StartServer(&serving_));
  BATON_RETURN_IF_ERROR(StartServer(&standby_));
  harness::PeerOptions load = FailoverPeer::Load(options_, connections_);
  BATON_ASSIGN_OR_RETURN(load.program,
                         harness::Binaries(options_.binary_directory).Find("baton-peer"));
  load.log_path = directory_.File("peer.log");
  load.port = serving_.port;
  load.arguments.insert(load.arguments.end(),
                        {"--standby", absl::StrCat(options_.fabric.host, ":", standby_.port)});
  BATON_ASSIGN_OR_RETURN(auto peer, harness::PeerProcess::Start(load));
  peer_ =
      std::make_unique<FailoverPeer>(std::move(peer), options_, connections_, /*reconnect=*/true);
  return absl::OkStatus();
}

absl::Status StandbySide::StartServer(Server* server) const {
  harness::ChildOptions child;
  BATON_ASSIGN_OR_RETURN(child.program,
                         harness::Binaries(options_.binary_directory).Find("ledger-baseline"));
  child.log_path = directory_.File("server.log");
  child.arguments = options_.PriorityArguments();
  child.arguments.insert(
      child.arguments.end(),
      {"--device", options_.fabric.device, "--listen",
       absl::StrCat(options_.fabric.host, ":", server->port), "--connections",
       absl::StrCat(connections_), "--window", "2", "--ballast-mib", absl::StrCat(ballast_mib_),
       "--reply-version", absl::StrCat(server->version)});
  BATON_ASSIGN_OR_RETURN(server->process, harness::ChildProcess::Start(child));
  const std::string beginning = "ledger-baseline ready port=";
  BATON_ASSIGN_OR_RETURN(const std::string line, server->process->ReadLineWith(beginning, kStart));
  server->port = static_cast<uint16_t>(std::atoi(line.c_str() + beginning.size()));
  return absl::OkStatus();
}

absl::StatusOr<Blackout> StandbySide::Measure(StandbyEvent event) {
  if (standby_.process == nullptr) BATON_RETURN_IF_ERROR(StartServer(&standby_));
  BATON_RETURN_IF_ERROR(peer_->AwaitSpares());
  const int signal = event == StandbyEvent::kCrash ? SIGKILL : SIGUSR1;
  BATON_ASSIGN_OR_RETURN(
      Blackout blackout,
      peer_->Measure([&] { return serving_.process->Signal(signal); }, standby_.version));
  if (event == StandbyEvent::kDrain) BATON_RETURN_IF_ERROR(serving_.process->Terminate(kStart));
  BATON_RETURN_IF_ERROR(serving_.process->WaitEnd(kStart).status());
  BATON_RETURN_IF_ERROR(peer_->MeasureQuiet(&blackout));
  serving_.process = nullptr;
  std::swap(serving_, standby_);
  return blackout;
}

}  // namespace baton::bench
