#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/status_macros.h"
#include "tests/bench/failover_side.h"
#include "tests/harness/binaries.h"

namespace baton::bench {

absl::StatusOr<std::unique_ptr<StandbySide>> StandbySide::Start(const FailoverOptions& options,
                                                                uint32_t connections,
                                                                uint32_t ballast_mib) {
  BATON_ASSIGN_OR_RETURN(harness::TempDirectory directory, harness::TempDirectory::Create());
  std::unique_ptr<StandbySide> side(new StandbySide(std::move(directory)));
  BATON_RETURN_IF_ERROR(side->Open(options, connections, ballast_mib));
  return side;
}

absl::Status StandbySide::Open(const FailoverOptions& options, uint32_t connections,
                               uint32_t ballast_mib) {
  harness::StandbyPairOptions pair;
  pair.binary_directory = options.binary_directory;
  pair.log_path = directory_.File("server.log");
  pair.fabric = options.fabric;
  pair.connections = connections;
  pair.arguments = options.PriorityArguments();
  pair.arguments.insert(pair.arguments.end(),
                        {"--window", "2", "--ballast-mib", absl::StrCat(ballast_mib)});
  BATON_ASSIGN_OR_RETURN(pair_, harness::StandbyPair::Start(std::move(pair)));
  harness::PeerOptions load = FailoverPeer::Load(options, connections);
  BATON_ASSIGN_OR_RETURN(load.program,
                         harness::Binaries(options.binary_directory).Find("baton-peer"));
  load.log_path = directory_.File("peer.log");
  pair_->SetAddresses(&load);
  BATON_ASSIGN_OR_RETURN(auto peer, harness::PeerProcess::Start(load));
  peer_ = std::make_unique<FailoverPeer>(std::move(peer), options, connections, /*reconnect=*/true);
  return absl::OkStatus();
}

absl::StatusOr<Blackout> StandbySide::Measure(StandbyEvent event) {
  BATON_RETURN_IF_ERROR(pair_->StandBy());
  BATON_RETURN_IF_ERROR(peer_->AwaitSpares());
  const auto action = [&] {
    return event == StandbyEvent::kCrash ? pair_->Crash() : pair_->Drain();
  };
  BATON_ASSIGN_OR_RETURN(Blackout blackout, peer_->Measure(action, pair_->standby_version()));
  BATON_RETURN_IF_ERROR(pair_->Succeed());
  BATON_RETURN_IF_ERROR(peer_->MeasureQuiet(&blackout));
  return blackout;
}

}  // namespace baton::bench
