// Operators who type at random: valid and invalid commands, from several clients at once, under a
// checked load, with workers and control killed in between. Every command has an answer, nothing is
// lost, and what is there afterwards fits what the answers said.
// BATON_COMMANDS: how many (400; the bar is 1,000); BATON_SEED: of all that is random (printed).
#include <grpcpp/grpcpp.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/arena/layout.h"
#include "proto/baton/v1/operator.grpc.pb.h"
#include "tests/harness/cluster.h"
#include "tests/harness/cluster_fixture.h"
#include "tests/harness/expectations.h"
#include "tests/harness/setting.h"
#include "tests/harness/wait_until.h"

namespace baton {
namespace {

using harness::Cluster;
using Stub = v1::OperatorService::Stub;

constexpr char kService[] = "ledger";
constexpr uint32_t kShards = 4;
constexpr uint32_t kConnections = 16;
constexpr int kClients = 4;
constexpr size_t kWorkers = 3;  // that are kept running beside those of upgrades
// Longer than the server lets anything take.
constexpr std::chrono::seconds kAnswer{120};

// Its outcome was lost with control, or its keeper could not be asked.
bool IsUnknown(grpc::StatusCode code) {
  return code == grpc::StatusCode::UNAVAILABLE || code == grpc::StatusCode::CANCELLED;
}

// What one client did, and what it was told.
struct Record {
  std::map<std::string, grpc::StatusCode> changes;  // by reason, which is another for each
  std::set<uint64_t> upgrades;                      // that it was told have begun
  uint64_t unknown_upgrades = 0;
  uint64_t epochs[kShards] = {};  // as last seen
  std::map<std::string, uint64_t> counts;
  // Only the first client drains: nothing: it cannot know.
  std::optional<bool> drained = false;
};

class Client {
 public:
  Client(int number, const std::string& socket, uint64_t seed, std::string directory)
      : number_(number),
        random_(seed),
        directory_(std::move(directory)),
        stub_(v1::OperatorService::NewStub(Channel(socket))) {}

  // One command at random. Fails when it has no answer, or one that nobody should get.
  void Act() {
    const std::vector<std::function<void()>> commands = {
        [this] { Look(); },       [this] { Look(); },    [this] { HandOff(); },
        [this] { HandOff(); },    [this] { HandOff(); }, [this] { Upgrade(); },
        [this] { Upgrade(); },    [this] { Hold(); },    [this] { Rollback(); },
        [this] { EndAWorker(); }, [this] { Drain(); },   [this] { History(); },
        [this] { SetPolicy(); }};
    if (number_ == 0 && Chance(20)) return Drain();
    commands[Draw(commands.size())]();
  }

  const Record& record() const { return record_; }

 private:
  static std::shared_ptr<grpc::Channel> Channel(const std::string& socket) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 100);
    arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 20);
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return grpc::CreateCustomChannel("unix:" + socket, grpc::InsecureChannelCredentials(),
                                     arguments);
  }

  uint64_t Draw(uint64_t below) { return random_() % below; }
  bool Chance(uint64_t percent) { return Draw(100) < percent; }
  std::string Service() {
    if (Chance(92)) return kService;
    return Chance(50) ? "nobody" : "no\nbody\x1b[31m";
  }
  uint32_t AShard() { return static_cast<uint32_t>(Chance(90) ? Draw(kShards) : Draw(1000)); }
  // Ids are given in order, so that recent ones are likely to be there.
  uint64_t AWorker() {
    if (Chance(10)) return Draw(1'000'000);
    return workers_.empty() ? 0 : workers_[Draw(workers_.size())];
  }

  template <typename Request, typename Response>
  grpc::Status Call(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                    const std::string& name, const Request& request, Response* response,
                    const std::string& reason = "") {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + harness::Patient(kAnswer));
    context.set_wait_for_ready(true);
    if (!reason.empty()) context.AddMetadata("baton-reason", reason);
    grpc::Status status = (stub_.get()->*method)(&context, request, response);
    ++record_.counts[name + (status.ok() ? "" : " refused")];
    // What the server says of time has words of its own.
    EXPECT_NE(status.error_message(), "Deadline Exceeded") << name << ": no answer";
    for (const grpc::StatusCode broken :
         {grpc::StatusCode::INTERNAL, grpc::StatusCode::UNKNOWN, grpc::StatusCode::UNIMPLEMENTED,
          grpc::StatusCode::DATA_LOSS, grpc::StatusCode::PERMISSION_DENIED}) {
      EXPECT_NE(status.error_code(), broken) << name << ": " << status.error_message();
    }
    EXPECT_TRUE(status.ok() || !status.error_message().empty()) << name;
    return status;
  }

  template <typename Request, typename Response>
  grpc::StatusCode Change(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                                       Response*),
                          const std::string& name, const Request& request, Response* response) {
    const std::string reason = absl::StrCat("client ", number_, " change ", ++changes_);
    const grpc::StatusCode code = Call(method, name, request, response, reason).error_code();
    record_.changes[reason] = code;
    return code;
  }

  void NoteEpoch(const v1::Shard& shard) {
    ASSERT_LT(shard.index(), kShards);
    EXPECT_GE(shard.epoch(), record_.epochs[shard.index()]) << "shard " << shard.index();
    record_.epochs[shard.index()] = shard.epoch();
  }

  void Look() {
    v1::GetServiceRequest request;
    v1::GetServiceResponse response;
    request.set_service(Service());
    if (!Call(&Stub::GetService, "look", request, &response).ok()) return;
    workers_.clear();
    for (const v1::Worker& worker : response.workers()) workers_.push_back(worker.id());
    std::set<uint64_t> ids(workers_.begin(), workers_.end());
    EXPECT_EQ(ids.size(), workers_.size()) << "a worker is listed twice";
    for (const v1::Shard& shard : response.shards()) {
      NoteEpoch(shard);
      EXPECT_TRUE(shard.owner_worker_id() == 0 || ids.count(shard.owner_worker_id()) == 1);
    }
  }

  void History() {
    v1::ListShardMovesRequest request;
    v1::ListShardMovesResponse response;
    request.set_service(Service());
    request.set_shard(Chance(50) ? -1 : static_cast<int32_t>(AShard()));
    (void)Call(&Stub::ListShardMoves, "history", request, &response);
    v1::ListConnectionsRequest connections;
    v1::ListConnectionsResponse listed;
    connections.set_service(Service());
    connections.set_shard(static_cast<int32_t>(Draw(8)) - 3);
    connections.set_page_size(static_cast<uint32_t>(Draw(20'000)));
    (void)Call(&Stub::ListConnections, "connections", connections, &listed);
  }

  void HandOff() {
    v1::HandoffRequest request;
    v1::HandoffResponse response;
    request.set_service(Service());
    for (uint64_t i = Draw(4); i > 0; --i) request.add_shards(AShard());
    if (Chance(70)) request.set_to_worker_id(AWorker());
    if (Chance(50)) request.set_timeout_ms(static_cast<uint32_t>(1 + Draw(2000)));
    if (Change(&Stub::Handoff, "handoff", request, &response) != grpc::StatusCode::OK) return;
    if (request.to_worker_id() != 0) {
      EXPECT_EQ(response.to_worker_id(), request.to_worker_id());
    }
    const std::set<uint32_t> asked(request.shards().begin(), request.shards().end());
    const std::set<uint32_t> moved(response.shards().begin(), response.shards().end());
    EXPECT_TRUE(asked.empty() ? moved.size() == kShards : asked == moved);
  }

  std::string AProgram() {
    switch (Draw(10)) {
      case 0:
        return "";
      case 1:
        return "relative";
      case 2:
        return directory_ + "/none";
      case 3:
        return "/dev/null";
      case 4:
        return "/bin/false";
      case 5:
        return harness::Binaries().Find("ledger-faulty").value();
      default:
        return harness::Binaries().Find(Chance(50) ? "ledger-v1" : "ledger-v2").value();
    }
  }

  void Upgrade() {
    v1::UpgradeRequest request;
    v1::UpgradeResponse response;
    request.set_service(Service());
    v1::UpgradePlan* const plan = request.mutable_plan();
    plan->set_exec(AProgram());
    plan->set_workers(static_cast<uint32_t>(Chance(90) ? 1 + Draw(2) : Draw(100)));
    plan->set_ready_timeout_ms(static_cast<uint32_t>(200 + Draw(3000)));
    plan->set_watch_window_ms(static_cast<uint32_t>(1 + Draw(300)));
    plan->set_no_rollback(Chance(10));
    if (Chance(40)) {
      for (uint64_t i = Draw(4); i > 0; --i) plan->add_canary_shards(AShard());
      plan->set_canary_window_ms(static_cast<uint32_t>(Draw(200)));
      plan->set_pause_after_canary(Chance(30));
    }
    if (Chance(10)) plan->mutable_gates()->set_max_blackout_us(static_cast<double>(Draw(5000)));
    if (Chance(10)) plan->mutable_gates()->set_min_completions(Draw(500));
    const grpc::StatusCode code = Change(&Stub::Upgrade, "upgrade", request, &response);
    NoteUpgrade(code, response.upgrade().id());
  }

  void Rollback() {
    v1::RollbackRequest request;
    v1::RollbackResponse response;
    request.set_service(Service());
    request.set_watch_window_ms(static_cast<uint32_t>(1 + Draw(100)));
    const grpc::StatusCode code = Change(&Stub::Rollback, "rollback", request, &response);
    NoteUpgrade(code, response.upgrade().id());
  }

  void NoteUpgrade(grpc::StatusCode code, uint64_t id) {
    if (code == grpc::StatusCode::OK) record_.upgrades.insert(id);
    if (IsUnknown(code)) ++record_.unknown_upgrades;
  }

  void Hold() {
    if (Chance(40)) {
      v1::PauseUpgradeRequest request;
      v1::PauseUpgradeResponse response;
      request.set_service(Service());
      const grpc::StatusCode code = Change(&Stub::PauseUpgrade, "pause", request, &response);
      EXPECT_TRUE(code != grpc::StatusCode::OK || response.upgrade().paused());
      return;
    }
    v1::ResumeUpgradeRequest request;
    v1::ResumeUpgradeResponse response;
    request.set_service(Service());
    (void)Change(&Stub::ResumeUpgrade, "resume", request, &response);
  }

  void EndAWorker() {
    if (Chance(50)) {
      v1::KillWorkerRequest request;
      v1::KillWorkerResponse response;
      request.set_service(Service());
      request.set_worker_id(AWorker());
      (void)Change(&Stub::KillWorker, "kill", request, &response);
      return;
    }
    v1::StopWorkerRequest request;
    v1::StopWorkerResponse response;
    request.set_service(Service());
    request.set_worker_id(AWorker());
    request.set_timeout_ms(static_cast<uint32_t>(Chance(95) ? 1 + Draw(2000) : 700'000));
    (void)Change(&Stub::StopWorker, "stop", request, &response);
  }

  // Sets a policy. It bounds what is new, and nothing that there is.
  void SetPolicy() {
    v1::SetPolicyRequest request;
    v1::SetPolicyResponse response;
    request.set_service(Service());
    request.set_validate_only(Chance(20));
    v1::Policy* const policy = request.mutable_policy();
    policy->mutable_service()->set_connections(static_cast<uint32_t>(Draw(2 * kConnections)));
    policy->mutable_worker()->set_listeners(static_cast<uint32_t>(Draw(12)));
    policy->mutable_service()->set_posts_per_second(
        static_cast<uint32_t>(Chance(50) ? 0 : 2000 + Draw(100'000)));
    // The keeper starts standbys. Now and then the policy asks for more than there can be.
    policy->set_hot_standbys(static_cast<uint32_t>(Chance(90) ? Draw(3) : 16 + Draw(4)));
    if (Chance(20)) policy->add_gids(Chance(50) ? "127.0.0.1" : "nowhere");
    if (Chance(20)) policy->add_listen_ports()->set_first(static_cast<uint32_t>(Draw(70'000)));
    // To look whether it could be is no change, and not on record.
    if (request.validate_only()) {
      (void)Call(&Stub::SetPolicy, "policy check", request, &response);
    } else {
      (void)Change(&Stub::SetPolicy, "policy", request, &response);
    }
  }

  // The first client alone, so that it knows what is so afterwards. Nobody is disconnected: the
  // peer would miss something.
  void Drain() {
    if (number_ != 0) return Look();
    if (Chance(50)) {
      v1::DrainServiceRequest request;
      v1::DrainServiceResponse response;
      request.set_service(Service());
      request.set_deadline_ms(static_cast<uint32_t>(Draw(3)));
      request.set_disconnect(Chance(10) && request.deadline_ms() == 0);  // which is refused
      const grpc::StatusCode code = Change(&Stub::DrainService, "drain", request, &response);
      if (code == grpc::StatusCode::OK) record_.drained = true;
      if (IsUnknown(code)) record_.drained.reset();
      return;
    }
    v1::EndDrainRequest request;
    v1::EndDrainResponse response;
    request.set_service(Service());
    const grpc::StatusCode code = Change(&Stub::EndDrain, "end drain", request, &response);
    if (code == grpc::StatusCode::FAILED_PRECONDITION) {
      EXPECT_NE(record_.drained, true);
      record_.drained = false;
    }
    if (code == grpc::StatusCode::OK) {
      EXPECT_NE(record_.drained, false);
      record_.drained = false;
    }
    if (IsUnknown(code)) record_.drained.reset();
  }

  const int number_;
  std::mt19937_64 random_;
  const std::string directory_;
  const std::unique_ptr<Stub> stub_;
  std::vector<uint64_t> workers_;  // as last seen
  uint64_t changes_ = 0;
  Record record_;
};

class RandomCommandsTest : public harness::ClusterFixture {
 protected:
  void SetUp() override {
    harness::ClusterOptions options;
    options.shards = kShards;
    options.max_connections = kConnections;
    // Workers are killed again and again, and no connection is to fail for that.
    options.batond_arguments = {"--poison-deaths", "4294967295"};
    ASSERT_OK_AND_ASSIGN(cluster_, Cluster::Start(options));
    auto first = cluster_->StartLedger(1);
    ASSERT_OK(first);
    processes_.push_back(std::move((*first)->process));
    harness::PeerOptions load;
    load.connections = kConnections;
    load.rate = 1000;
    ASSERT_OK_AND_ASSIGN(peer_, cluster_->StartPeer(load));
    ASSERT_OK(peer_->Settle());
  }

  // ---- What goes on beside the clients, on the test's thread.

  void KeepWorkers() {
    std::erase_if(processes_, [](const auto& process) { return process->HasEnded(); });
    if (processes_.size() >= kWorkers) return;
    harness::LedgerOptions options;
    options.version = 1 + static_cast<int>(Draw(2));
    auto process = cluster_->SpawnLedger(options);
    ASSERT_OK(process);
    processes_.push_back(*std::move(process));
  }

  void MakeTrouble() {
    if (Draw(10) > 0) {
      if (processes_.empty()) return;
      ++workers_killed_;
      (void)processes_[Draw(processes_.size())]->Signal(SIGKILL);
      return;
    }
    const auto status = cluster_->operators().GetStatus();
    if (!status.ok()) return;  // it is dead already
    ++controls_killed_;
    kill(status->control_pid(), SIGKILL);
  }

  void RunClients(uint64_t commands, uint64_t seed) {
    std::vector<std::thread> threads;
    std::atomic<int64_t> left = static_cast<int64_t>(commands);
    std::atomic<int> running = kClients;
    for (int i = 0; i < kClients; ++i) {
      clients_.push_back(std::make_unique<Client>(i, cluster_->OperatorSocketPath(),
                                                  seed * kClients + static_cast<uint64_t>(i),
                                                  cluster_->directory()));
      threads.emplace_back([&, client = clients_.back().get()] {
        while (left.fetch_sub(1) > 0) client->Act();
        --running;
      });
    }
    // After so many commands, however fast they are.
    auto next = static_cast<int64_t>(commands - Draw(12));
    while (running > 0 && !peer_->process().HasEnded()) {
      KeepWorkers();
      if (HasFatalFailure()) break;
      if (left > next) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        continue;
      }
      next -= static_cast<int64_t>(1 + Draw(24));
      MakeTrouble();
    }
    for (std::thread& thread : threads) thread.join();
  }

  // ---- Afterwards.

  v1::GetServiceResponse AwaitService(
      const std::string& what, const std::function<bool(const v1::GetServiceResponse&)>& is) {
    v1::GetServiceResponse found;
    EXPECT_OK(harness::WaitUntil(
        what,
        [&] {
          const auto service = cluster_->GetService();
          if (!service.ok() || !is(*service)) return false;
          found = *service;
          return true;
        },
        harness::Patient(std::chrono::seconds(60))));
    return found;
  }

  // Until nothing is under way and everything is owned.
  v1::GetServiceResponse Settle() {
    const auto stub = v1::OperatorService::NewStub(grpc::CreateChannel(
        "unix:" + cluster_->OperatorSocketPath(), grpc::InsecureChannelCredentials()));
    return AwaitService("everything to be settled", [&](const v1::GetServiceResponse& service) {
      KeepWorkers();
      if (service.service().upgrade().paused()) {
        grpc::ClientContext context;
        v1::ResumeUpgradeRequest request;
        v1::ResumeUpgradeResponse response;
        request.set_service(kService);
        (void)stub->ResumeUpgrade(&context, request, &response);
      }
      return !service.service().has_upgrade() && service.service().shards_owned() == kShards;
    });
  }

  // Each shard has one owner, who is there and says the same.
  static void ExpectOneOwnerEach(const v1::GetServiceResponse& service) {
    std::map<uint32_t, uint64_t> owners;
    for (const v1::Worker& worker : service.workers()) {
      for (const uint32_t shard : worker.shards()) {
        EXPECT_TRUE(owners.emplace(shard, worker.id()).second) << "shard " << shard;
      }
    }
    for (const v1::Shard& shard : service.shards()) {
      EXPECT_EQ(owners[shard.index()], shard.owner_worker_id()) << "shard " << shard.index();
    }
  }

  // Each epoch that ended is there, up to the present one, and was followed by the next whose
  // commit bank was free.
  void ExpectWholeHistory(const v1::GetServiceResponse& service) {
    const auto stub = v1::OperatorService::NewStub(grpc::CreateChannel(
        "unix:" + cluster_->OperatorSocketPath(), grpc::InsecureChannelCredentials()));
    grpc::ClientContext context;
    v1::ListShardMovesRequest request;
    v1::ListShardMovesResponse response;
    request.set_service(kService);
    request.set_shard(-1);
    ASSERT_TRUE(stub->ListShardMoves(&context, request, &response).ok());
    std::map<uint32_t, std::vector<v1::ReconciliationReport>> reports;
    for (const v1::ShardMove& move : response.moves()) {
      reports[move.shard()].push_back(move.report());
    }
    for (const v1::Shard& shard : service.shards()) {
      uint64_t epoch = shard.epoch();
      uint64_t owner = shard.owner_worker_id();
      for (const v1::ReconciliationReport& report : reports[shard.index()]) {
        EXPECT_LT(report.epoch(), epoch) << "shard " << shard.index();
        EXPECT_GE(report.epoch() + arena::kCommitBanks, epoch) << "shard " << shard.index();
        EXPECT_NE(report.former_worker_id(), 0u) << "shard " << shard.index();
        // An owner that died before its first commit has not served, and is not named as successor.
        if (report.successor_worker_id() != 0) {
          EXPECT_EQ(report.successor_worker_id(), owner) << "shard " << shard.index();
        }
        epoch = report.epoch();
        owner = report.former_worker_id();
      }
      const bool all = response.moves_size() < 256;
      EXPECT_TRUE(!all || epoch == 1) << "shard " << shard.index() << " begins at " << epoch;
    }
  }

  // Expects two records of each change: one before it, and one after it that says what its caller
  // was told.
  void ExpectOnRecord() {
    const auto stub = v1::OperatorService::NewStub(grpc::CreateChannel(
        "unix:" + cluster_->OperatorSocketPath(), grpc::InsecureChannelCredentials()));
    grpc::ClientContext context;
    v1::WatchEventsRequest request;
    request.set_changes(true);
    const auto reader = stub->WatchEvents(&context, request);
    std::map<std::string, std::vector<v1::Change>> records;
    v1::WatchEventsResponse response;
    uint64_t last = 0;
    while (reader->Read(&response)) {
      const v1::Change& change = response.event().change();
      records[change.why()].push_back(change);
      if (!change.done()) {
        EXPECT_GT(change.number(), last);
        last = change.number();
      }
    }
    ASSERT_TRUE(reader->Finish().ok());
    for (const auto& client : clients_) {
      for (const auto& [reason, code] : client->record().changes) {
        const std::vector<v1::Change>& found = records[reason];
        SCOPED_TRACE(reason);
        EXPECT_LE(found.size(), 2u);
        if (IsUnknown(code) && (found.size() < 2 || code == grpc::StatusCode::CANCELLED)) continue;
        ASSERT_EQ(found.size(), 2u);
        EXPECT_FALSE(found[0].done());
        EXPECT_TRUE(found[1].done());
        EXPECT_EQ(found[0].number(), found[1].number());
        if (IsUnknown(code)) continue;  // it was done, and the answer lost
        const std::string name = absl::StatusCodeToString(static_cast<absl::StatusCode>(code));
        EXPECT_TRUE(absl::StartsWith(found[1].outcome(), name)) << found[1].outcome();
      }
    }
  }

  // None has begun that nobody was told of.
  void ExpectUpgradesAsTold() {
    const auto list = cluster_->operators().ListUpgrades(kService);
    ASSERT_OK(list);
    std::set<uint64_t> told;
    uint64_t unknown = 0;
    for (const auto& client : clients_) {
      told.insert(client->record().upgrades.begin(), client->record().upgrades.end());
      unknown += client->record().unknown_upgrades;
    }
    const uint64_t newest = list->upgrades().empty() ? 0 : list->upgrades(0).id();
    EXPECT_LE(told.empty() ? 0 : *told.rbegin(), newest);
    EXPECT_LE(newest - told.size(), unknown);
    for (const v1::Upgrade& upgrade : list->upgrades()) {
      EXPECT_NE(upgrade.ended_unix_micros(), 0) << upgrade.ShortDebugString();
    }
  }

  void PrintCounts() const {
    std::map<std::string, uint64_t> counts;
    for (const auto& client : clients_) {
      for (const auto& [name, count] : client->record().counts) counts[name] += count;
    }
    for (const auto& [name, count] : counts) {
      std::printf("%-20s %6llu\n", name.c_str(), static_cast<unsigned long long>(count));
    }
    std::printf("workers killed %llu, controls killed %llu\n",
                static_cast<unsigned long long>(workers_killed_),
                static_cast<unsigned long long>(controls_killed_));
  }

  uint64_t Draw(uint64_t below) { return random_() % below; }

  std::mt19937_64 random_;
  std::unique_ptr<harness::PeerProcess> peer_;
  std::vector<std::unique_ptr<harness::ChildProcess>> processes_;
  std::vector<std::unique_ptr<Client>> clients_;
  uint64_t workers_killed_ = 0, controls_killed_ = 0;
};

TEST_F(RandomCommandsTest, shouldAllBeAnsweredAndLoseNothing) {
  const uint64_t seed = harness::Setting("BATON_SEED", std::random_device{}());
  const uint64_t commands = harness::Setting("BATON_COMMANDS", 400 / harness::Slowness());
  std::printf("%llu commands, BATON_SEED=%llu\n", static_cast<unsigned long long>(commands),
              static_cast<unsigned long long>(seed));
  random_.seed(seed);
  ASSERT_NO_FATAL_FAILURE(RunClients(commands, seed));
  PrintCounts();
  v1::GetServiceResponse service = Settle();
  const std::optional<bool> drained = clients_[0]->record().drained;
  if (drained) {
    EXPECT_EQ(service.service().has_drain(), *drained);
  }
  EXPECT_EQ(service.service().connection_count(), kConnections);
  ExpectOneOwnerEach(service);
  for (const auto& client : clients_) {
    for (const v1::Shard& shard : service.shards()) {
      EXPECT_LE(client->record().epochs[shard.index()], shard.epoch());
    }
  }
  ExpectWholeHistory(service);
  ExpectOnRecord();
  ExpectUpgradesAsTold();
  ASSERT_OK(peer_->Settle());
  harness::ExpectNothingLost(*peer_);
}

}  // namespace
}  // namespace baton
