#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/base/clock.h"
#include "lib/base/status_macros.h"
#include "tests/bench/failover_side.h"
#include "tests/harness/wait_until.h"
#include "worker/examples/ledger/ledger_protocol.h"

namespace baton::bench {
namespace {

// One request at a time on a connection needs no more, and ten thousand connections need little
// memory with it.
constexpr uint32_t kWindow = 2;
constexpr uint32_t kQueueDepth = 4;
constexpr uint32_t kMessageBytes = ledger::kMinMessageBytes;
constexpr uint32_t kHeartbeatMs = 20;
constexpr std::chrono::seconds kEnd{20};

// The ledger keeps rings of twice its queues' depths.
uint64_t BufferBytes(uint32_t connections) {
  constexpr uint64_t kPage = 4096;
  const uint64_t slab = uint64_t{2} * kQueueDepth * (kMessageBytes + ledger::kReplyBytes);
  return (connections * slab + kPage - 1) / kPage * kPage;
}

// Logged by the keeper at a new owner's first commit.
struct Move {
  int64_t unix_micros = 0;
  double inside_ms = 0;
};
std::optional<Move> FindMove(const std::vector<v1::Event>& events, uint64_t worker) {
  constexpr std::string_view kInside = " goes on after ";
  for (const v1::Event& event : events) {
    if (event.kind() != "shard_moved" || event.worker_id() != worker) continue;
    const size_t place = event.message().find(kInside);
    if (place == std::string::npos) continue;
    const double microseconds = std::atof(event.message().c_str() + place + kInside.size());
    return Move{event.unix_micros(), microseconds / 1000};
  }
  return std::nullopt;
}

}  // namespace

absl::StatusOr<std::unique_ptr<BatonSide>> BatonSide::Start(const FailoverOptions& options,
                                                            uint32_t connections) {
  std::unique_ptr<BatonSide> side(new BatonSide(options, connections));
  absl::Status status = side->Open();
  if (status.ok()) return side;
  if (side->cluster_ != nullptr) side->cluster_->DumpLogs();
  return status;
}

absl::Status BatonSide::Open() {
  harness::ClusterOptions cluster;
  cluster.binaries = harness::Binaries(options_.binary_directory);
  cluster.fabric = options_.fabric;
  cluster.shards = 1;
  cluster.max_connections = connections_;
  cluster.window = kWindow;
  cluster.message_bytes = kMessageBytes;
  cluster.batond_arguments = options_.PriorityArguments();
  const std::pair<const char*, uint64_t> arguments[] = {
      {"--send-queue-depth", kQueueDepth},
      {"--receive-queue-depth", kQueueDepth},
      {"--buffer-bytes", BufferBytes(connections_)},
      {"--heartbeat-ms", kHeartbeatMs},
      {"--hang-timeout-ms", options_.hang_timeout_ms}};
  for (const auto& [flag, value] : arguments) {
    cluster.batond_arguments.emplace_back(flag);
    cluster.batond_arguments.push_back(absl::StrCat(value));
  }
  BATON_ASSIGN_OR_RETURN(cluster_, harness::Cluster::Start(std::move(cluster)));
  BATON_ASSIGN_OR_RETURN(owner_, StartWorker(/*version=*/1, 0, /*await_control=*/true));
  BATON_RETURN_IF_ERROR(cluster_->WaitUntilOwner(owner_->id()));
  BATON_ASSIGN_OR_RETURN(auto peer,
                         cluster_->StartPeer(FailoverPeer::Load(options_, connections_)));
  peer_ =
      std::make_unique<FailoverPeer>(std::move(peer), options_, connections_, /*reconnect=*/false);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<BatonSide::Worker>> BatonSide::StartWorker(int version,
                                                                          uint32_t ballast_mib,
                                                                          bool await_control) {
  harness::LedgerOptions options;
  options.program = "failover-worker";
  options.arguments = options_.PriorityArguments();
  options.arguments.insert(options.arguments.end(), {"--reply-version", absl::StrCat(version),
                                                     "--ballast-mib", absl::StrCat(ballast_mib)});
  options.await_control = await_control;
  BATON_ASSIGN_OR_RETURN(auto ledger, cluster_->StartLedger(options));
  return std::make_unique<Worker>(Worker{std::move(ledger), version, ballast_mib});
}

absl::Status BatonSide::Retire(std::unique_ptr<Worker> worker) {
  if (worker == nullptr) return absl::OkStatus();
  BATON_RETURN_IF_ERROR(worker->process().Terminate(kEnd));
  return cluster_->WaitUntilGone(worker->id());
}

absl::Status BatonSide::Prepare(FailoverEvent event, uint32_t ballast_mib) {
  if (standby_ != nullptr && standby_->ballast_mib != ballast_mib) {
    BATON_RETURN_IF_ERROR(Retire(std::move(standby_)));
  }
  const bool wrong_owner = owner_->ballast_mib != ballast_mib;
  if (standby_ == nullptr && (wrong_owner || event != FailoverEvent::kColdCrash)) {
    BATON_ASSIGN_OR_RETURN(standby_, StartWorker(OtherVersion(owner_->version), ballast_mib,
                                                 /*await_control=*/true));
  }
  if (wrong_owner) {
    BATON_RETURN_IF_ERROR(cluster_->Handoff(standby_->id()));
    std::swap(owner_, standby_);
    return Prepare(event, ballast_mib);  // a standby of that kind, too
  }
  return event == FailoverEvent::kColdCrash ? Retire(std::move(standby_)) : absl::OkStatus();
}

absl::StatusOr<Blackout> BatonSide::Measure(FailoverEvent event, uint32_t ballast_mib) {
  absl::Status status = Prepare(event, ballast_mib);
  if (status.ok()) {
    absl::StatusOr<Blackout> blackout = MeasurePrepared(event);
    if (blackout.ok()) return blackout;
    status = blackout.status();
  }
  cluster_->DumpLogs();
  return status;
}

absl::StatusOr<Blackout> BatonSide::MeasurePrepared(FailoverEvent event) {
  BATON_RETURN_IF_ERROR(cluster_->keeper().NewEvents().status());  // those before do not count
  int64_t start = 0;
  const auto action = [&] {
    start = UnixMicroseconds();
    return Do(event);
  };
  BATON_ASSIGN_OR_RETURN(Blackout blackout, peer_->Measure(action, OtherVersion(owner_->version)));
  BATON_RETURN_IF_ERROR(AfterDoing(event));
  BATON_RETURN_IF_ERROR(AddParts(event, start, &blackout));
  BATON_RETURN_IF_ERROR(cluster_->WaitUntilOwner(owner_->id()));
  BATON_RETURN_IF_ERROR(peer_->MeasureQuiet(&blackout));
  return blackout;
}

absl::Status BatonSide::Do(FailoverEvent event) {
  switch (event) {
    case FailoverEvent::kHandoff:
      return cluster_->Handoff(standby_->id());
    case FailoverEvent::kHotCrash:
      return owner_->process().Signal(SIGKILL);
    case FailoverEvent::kColdCrash: {
      BATON_RETURN_IF_ERROR(owner_->process().Kill());
      BATON_ASSIGN_OR_RETURN(standby_, StartWorker(OtherVersion(owner_->version),
                                                   owner_->ballast_mib, /*await_control=*/false));
      return absl::OkStatus();
    }
    case FailoverEvent::kHang:
      return owner_->process().Signal(SIGSTOP);
  }
  return absl::InternalError("no such event");
}

// The successor is the owner now. A former one that is dead, or killed by the keeper, is waited
// for.
absl::Status BatonSide::AfterDoing(FailoverEvent event) {
  std::unique_ptr<Worker> former = std::exchange(owner_, std::move(standby_));
  if (event != FailoverEvent::kHandoff) return former->process().WaitEnd(kEnd).status();
  standby_ = std::move(former);
  return absl::OkStatus();
}

absl::Status BatonSide::AddParts(FailoverEvent event, int64_t start_unix_micros,
                                 Blackout* blackout) {
  absl::Status asked;
  std::optional<Move> move;
  BATON_RETURN_IF_ERROR(harness::WaitUntil(absl::StrCat("the move to worker ", owner_->id()), [&] {
    const absl::StatusOr<std::vector<v1::Event>> events = cluster_->keeper().NewEvents();
    asked = events.status();
    if (events.ok()) move = FindMove(*events, owner_->id());
    return move.has_value() || !events.ok();
  }));
  BATON_RETURN_IF_ERROR(asked);
  blackout->inside = move->inside_ms;
  const auto until_commit = static_cast<double>(move->unix_micros - start_unix_micros) / 1000;
  blackout->noticed = std::max(0.0, until_commit - blackout->inside);
  // An owner that is asked to release serves until it does.
  const double silent_before = event == FailoverEvent::kHandoff ? 0 : blackout->noticed;
  blackout->reply = std::max(0.0, blackout->silence - silent_before - blackout->inside);
  return absl::OkStatus();
}

absl::Status BatonSide::Finish() {
  absl::Status status = peer_->Stop();
  status.Update(Retire(std::move(standby_)));
  status.Update(Retire(std::move(owner_)));
  status.Update(cluster_->Stop());
  if (!status.ok()) cluster_->DumpLogs();
  return status;
}

}  // namespace baton::bench
