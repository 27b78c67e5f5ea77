#include <signal.h>

#include <chrono>
#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "lib/base/status_macros.h"
#include "tests/bench/failover_side.h"
#include "tests/harness/binaries.h"

namespace baton::bench {
namespace {

constexpr std::chrono::seconds kStart{30};

}  // namespace

absl::StatusOr<std::unique_ptr<ReconnectSide>> ReconnectSide::Start(const FailoverOptions& options,
                                                                    uint32_t connections,
                                                                    uint32_t ballast_mib) {
  BATON_ASSIGN_OR_RETURN(harness::TempDirectory directory, harness::TempDirectory::Create());
  std::unique_ptr<ReconnectSide> side(
      new ReconnectSide(options, connections, ballast_mib, std::move(directory)));
  BATON_RETURN_IF_ERROR(side->Open());
  return side;
}

absl::Status ReconnectSide::Open() {
  BATON_ASSIGN_OR_RETURN(server_, StartServer(/*predecessor=*/0, version_));
  BATON_RETURN_IF_ERROR(WaitUntilItListens(*server_));
  harness::PeerOptions load = FailoverPeer::Load(options_, connections_);
  BATON_ASSIGN_OR_RETURN(load.program,
                         harness::Binaries(options_.binary_directory).Find("baton-peer"));
  load.log_path = directory_.File("peer.log");
  load.port = port_;
  load.reconnect = true;
  BATON_ASSIGN_OR_RETURN(auto peer, harness::PeerProcess::Start(load));
  peer_ =
      std::make_unique<FailoverPeer>(std::move(peer), options_, connections_, /*reconnect=*/true);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<harness::ChildProcess>> ReconnectSide::StartServer(
    pid_t predecessor, int version) const {
  harness::ChildOptions child;
  BATON_ASSIGN_OR_RETURN(child.program,
                         harness::Binaries(options_.binary_directory).Find("ledger-baseline"));
  child.log_path = directory_.File("server.log");
  child.arguments = options_.PriorityArguments();
  child.arguments.insert(child.arguments.end(),
                         {"--device", options_.fabric.device, "--listen",
                          absl::StrCat(options_.fabric.host, ":", port_), "--connections",
                          absl::StrCat(connections_), "--window", "2", "--ballast-mib",
                          absl::StrCat(ballast_mib_), "--reply-version", absl::StrCat(version)});
  if (predecessor != 0) {
    child.arguments.insert(child.arguments.end(), {"--wait-for-pid", absl::StrCat(predecessor)});
  }
  return harness::ChildProcess::Start(child);
}

absl::Status ReconnectSide::WaitUntilItListens(harness::ChildProcess& server) {
  const std::string beginning = "ledger-baseline ready port=";
  BATON_ASSIGN_OR_RETURN(const std::string line, server.ReadLineWith(beginning, kStart));
  port_ = static_cast<uint16_t>(std::atoi(line.c_str() + beginning.size()));
  return absl::OkStatus();
}

absl::StatusOr<Blackout> ReconnectSide::Measure() {
  const int version = OtherVersion(version_);
  BATON_ASSIGN_OR_RETURN(auto successor, StartServer(server_->pid(), version));
  BATON_RETURN_IF_ERROR(successor->ReadLineWith("ledger-baseline warm", kStart).status());
  BATON_ASSIGN_OR_RETURN(Blackout blackout,
                         peer_->Measure([&] { return server_->Signal(SIGKILL); }, version));
  BATON_RETURN_IF_ERROR(server_->WaitEnd(kStart).status());
  BATON_RETURN_IF_ERROR(WaitUntilItListens(*successor));
  BATON_RETURN_IF_ERROR(peer_->MeasureQuiet(&blackout));
  server_ = std::move(successor);
  version_ = version;
  return blackout;
}

}  // namespace baton::bench
