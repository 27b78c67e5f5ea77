#include "tests/harness/standby_pair.h"

#include <signal.h>

#include <chrono>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "lib/base/status.h"
#include "tests/harness/binaries.h"

namespace baton::harness {
namespace {

constexpr std::chrono::seconds kStart{30};

}  // namespace

absl::StatusOr<std::unique_ptr<StandbyPair>> StandbyPair::Start(StandbyPairOptions options) {
  std::unique_ptr<StandbyPair> pair(new StandbyPair(std::move(options)));
  pair->serving_.version = 1;
  pair->standby_.version = 2;
  BATON_RETURN_IF_ERROR(pair->StartServer(&pair->serving_));
  BATON_RETURN_IF_ERROR(pair->StandBy());
  return pair;
}

void StandbyPair::SetAddresses(PeerOptions* peer) const {
  peer->port = serving_.port;
  peer->arguments.insert(peer->arguments.end(),
                         {"--standby", absl::StrCat(options_.fabric.host, ":", standby_.port)});
}

absl::Status StandbyPair::StandBy() {
  return standby_.process == nullptr ? StartServer(&standby_) : absl::OkStatus();
}

absl::Status StandbyPair::StartServer(Server* server) const {
  ChildOptions child;
  BATON_ASSIGN_OR_RETURN(child.program,
                         Binaries(options_.binary_directory).Find("ledger-baseline"));
  child.log_path = options_.log_path;
  child.arguments = options_.arguments;
  child.arguments.insert(
      child.arguments.end(),
      {"--device", options_.fabric.device, "--listen",
       absl::StrCat(options_.fabric.host, ":", server->port), "--connections",
       absl::StrCat(options_.connections), "--reply-version", absl::StrCat(server->version)});
  BATON_ASSIGN_OR_RETURN(server->process, ChildProcess::Start(child));
  const std::string beginning = "ledger-baseline ready port=";
  BATON_ASSIGN_OR_RETURN(const std::string line, server->process->ReadLineWith(beginning, kStart));
  server->port = static_cast<uint16_t>(std::atoi(line.c_str() + beginning.size()));
  return absl::OkStatus();
}

absl::Status StandbyPair::Crash() { return serving_.process->Signal(SIGKILL); }

absl::Status StandbyPair::AwaitEnd() { return serving_.process->WaitEnd(kStart).status(); }

absl::Status StandbyPair::Drain() {
  drained_ = true;
  return serving_.process->Signal(SIGUSR1);
}

absl::Status StandbyPair::Succeed() {
  if (std::exchange(drained_, false)) {
    BATON_RETURN_IF_ERROR(serving_.process->Terminate(kStart));
  }
  BATON_RETURN_IF_ERROR(AwaitEnd());
  serving_.process = nullptr;
  std::swap(serving_, standby_);
  return absl::OkStatus();
}

}  // namespace baton::harness
