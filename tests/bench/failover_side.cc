#include "tests/bench/failover_side.h"

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "tests/harness/binaries.h"
#include "tests/harness/peer_process.h"
#include "tests/harness/wait_until.h"
#include "worker/examples/ledger/ledger_protocol.h"

namespace baton::bench {
namespace {

// For as many connections as are made anew one after the other.
constexpr std::chrono::seconds kSettle{60};

// What ten thousand connections that were all asked at once leave behind, such as delayed
// acknowledgements, and the start of a process: they are not the event's.
constexpr std::chrono::milliseconds kRest{250};

double Milliseconds(uint64_t nanoseconds) { return static_cast<double>(nanoseconds) * 1e-6; }

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

constexpr std::chrono::seconds kStart{30};

}  // namespace

harness::PeerOptions FailoverPeer::Load(const FailoverOptions& options, uint32_t connections) {
  harness::PeerOptions load;
  load.fabric = options.fabric;
  load.connections = connections;
  load.active = options.ActiveOf(connections);
  load.window = 1;
  load.rate = options.rate;
  load.arguments = options.PriorityArguments();
  return load;
}

absl::StatusOr<Silence> FailoverPeer::Measure(const std::function<absl::Status()>& action,
                                              int version) {
  Silence silence;
  BATON_RETURN_IF_ERROR(process_->Settle(kSettle));
  BATON_RETURN_IF_ERROR(RestAndMark());
  const uint64_t start = MonotonicNanoseconds();
  BATON_RETURN_IF_ERROR(action());
  // The others are asked afterwards: their requests would be in the way of those that are measured.
  BATON_RETURN_IF_ERROR(AwaitSuccessor(version, &silence));
  BATON_RETURN_IF_ERROR(process_->Settle(kSettle));
  silence.all = Milliseconds(MonotonicNanoseconds() - start);
  BATON_ASSIGN_OR_RETURN(const harness::PeerWindow window, process_->Mark("all"));
  if (window.last_versions[version] != connections_) {
    return absl::InternalError(absl::StrCat("only ", window.last_versions[version], " of ",
                                            connections_,
                                            " connections were answered by the successor"));
  }
  BATON_RETURN_IF_ERROR(Judge(window));
  return silence;
}

// One that was signalled may still have answered what came before its death.
absl::Status FailoverPeer::AwaitSuccessor(int version, Silence* silence) {
  const auto deadline = std::chrono::steady_clock::now() + kSettle;
  do {
    BATON_RETURN_IF_ERROR(process_->SettleActive(kSettle));
    BATON_ASSIGN_OR_RETURN(const harness::PeerWindow window, process_->Mark("event"));
    BATON_RETURN_IF_ERROR(Judge(window));
    silence->longest = std::max(silence->longest, window.max_silence_us / 1000);
    silence->window += window.seconds * 1000;
    if (window.last_versions[version] == active_) return absl::OkStatus();
  } while (std::chrono::steady_clock::now() < deadline);
  return absl::DeadlineExceededError("the former owner answers on");
}

absl::Status FailoverPeer::MeasureQuiet(Silence* silence) {
  BATON_RETURN_IF_ERROR(RestAndMark());
  // The window is this time itself: nothing is waited for.
  std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(silence->window));
  BATON_ASSIGN_OR_RETURN(const harness::PeerWindow window, process_->Mark("quiet"));
  silence->quiet = window.max_silence_us / 1000;
  return Judge(window);
}

absl::Status FailoverPeer::AwaitSpares() { return process_->AwaitSpares(connections_, kSettle); }

absl::Status FailoverPeer::RestAndMark() {
  std::this_thread::sleep_for(kRest);
  return process_->Mark("rest").status();
}

absl::Status FailoverPeer::Judge(const harness::PeerWindow& window) const {
  if (reconnect_ || window.disconnects == 0) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(window.disconnects, " connections were lost"));
}

absl::Status FailoverPeer::Stop() { return process_->StopChecked().status(); }

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
  cluster.yield_microseconds = 0;
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

absl::StatusOr<Silence> BatonSide::Measure(FailoverEvent event, uint32_t ballast_mib) {
  absl::Status status = Prepare(event, ballast_mib);
  if (status.ok()) {
    absl::StatusOr<Silence> silence = MeasurePrepared(event);
    if (silence.ok()) return silence;
    status = silence.status();
  }
  cluster_->DumpLogs();
  return status;
}

absl::StatusOr<Silence> BatonSide::MeasurePrepared(FailoverEvent event) {
  BATON_RETURN_IF_ERROR(cluster_->keeper().NewEvents().status());  // those before do not count
  int64_t start = 0;
  const auto action = [&] {
    start = UnixMicroseconds();
    return Do(event);
  };
  BATON_ASSIGN_OR_RETURN(Silence silence, peer_->Measure(action, OtherVersion(owner_->version)));
  BATON_RETURN_IF_ERROR(AfterDoing(event));
  BATON_RETURN_IF_ERROR(AddParts(event, start, &silence));
  BATON_RETURN_IF_ERROR(cluster_->WaitUntilOwner(owner_->id()));
  BATON_RETURN_IF_ERROR(peer_->MeasureQuiet(&silence));
  return silence;
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

absl::Status BatonSide::AddParts(FailoverEvent event, int64_t start_unix_micros, Silence* silence) {
  absl::Status asked;
  std::optional<Move> move;
  BATON_RETURN_IF_ERROR(harness::WaitUntil(absl::StrCat("the move to worker ", owner_->id()), [&] {
    const absl::StatusOr<std::vector<v1::Event>> events = cluster_->keeper().NewEvents();
    asked = events.status();
    if (events.ok()) move = FindMove(*events, owner_->id());
    return move.has_value() || !events.ok();
  }));
  BATON_RETURN_IF_ERROR(asked);
  silence->inside = move->inside_ms;
  const auto until_commit = static_cast<double>(move->unix_micros - start_unix_micros) / 1000;
  silence->noticed = std::max(0.0, until_commit - silence->inside);
  // An owner that is asked to release serves until it does.
  const double silent_before = event == FailoverEvent::kHandoff ? 0 : silence->noticed;
  silence->reply = std::max(0.0, silence->longest - silent_before - silence->inside);
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

absl::StatusOr<Silence> ReconnectSide::Measure() {
  const int version = OtherVersion(version_);
  BATON_ASSIGN_OR_RETURN(auto successor, StartServer(server_->pid(), version));
  BATON_RETURN_IF_ERROR(successor->ReadLineWith("ledger-baseline warm", kStart).status());
  BATON_ASSIGN_OR_RETURN(Silence silence,
                         peer_->Measure([&] { return server_->Signal(SIGKILL); }, version));
  BATON_RETURN_IF_ERROR(server_->WaitEnd(kStart).status());
  BATON_RETURN_IF_ERROR(WaitUntilItListens(*successor));
  BATON_RETURN_IF_ERROR(peer_->MeasureQuiet(&silence));
  server_ = std::move(successor);
  version_ = version;
  return silence;
}

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

absl::StatusOr<Silence> StandbySide::Measure(StandbyEvent event) {
  BATON_RETURN_IF_ERROR(pair_->StandBy());
  BATON_RETURN_IF_ERROR(peer_->AwaitSpares());
  const auto action = [&] {
    return event == StandbyEvent::kCrash ? pair_->Crash() : pair_->Drain();
  };
  BATON_ASSIGN_OR_RETURN(Silence silence, peer_->Measure(action, pair_->standby_version()));
  BATON_RETURN_IF_ERROR(pair_->Succeed());
  BATON_RETURN_IF_ERROR(peer_->MeasureQuiet(&silence));
  return silence;
}

}  // namespace baton::bench
