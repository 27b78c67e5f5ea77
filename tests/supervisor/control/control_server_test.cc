#include "supervisor/control/control_server.h"

#include <fcntl.h>
#include <grp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "grpcpp/create_channel_posix.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "proto/baton/v1/operator.grpc.pb.h"
#include "spdlog/sinks/ostream_sink.h"
#include "spdlog/spdlog.h"
#include "supervisor/cli/client.h"
#include "supervisor/config/state_files.h"
#include "supervisor/control/config.h"
#include "tests/harness/wait_until.h"
#include "tests/supervisor/control/control_fixture.h"

namespace baton {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ControlServerTest : public ControlFixture {
 protected:
  std::unique_ptr<OperatorClient> Client() {
    auto client = OperatorClient::Connect(OperatorSocketPath(state_dir_), 20);
    EXPECT_TRUE(client.ok()) << client.status();
    return *std::move(client);
  }

  // Makes a channel as a stock gRPC client does.
  static std::shared_ptr<grpc::Channel> Channel(const std::string& path) {
    return grpc::CreateChannel("unix:" + path, grpc::InsecureChannelCredentials());
  }
};

// The request is about one service.
template <typename Request>
Request About(const std::string& service) {
  Request request;
  request.set_service(service);
  return request;
}

// One call of a bidirectional or unary method with bytes of our own, and its first answer.
std::string CallRaw(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                    const std::string& request) {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  const auto next = [&queue] {
    void* tag;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  const auto call = stub.PrepareCall(&context, method, &queue);
  call->StartCall(nullptr);
  next();
  const grpc::Slice slice(request);
  call->WriteLast(grpc::ByteBuffer(&slice, 1), grpc::WriteOptions(), nullptr);
  next();
  grpc::ByteBuffer answer;
  call->Read(&answer, nullptr);
  const bool answered = next();
  grpc::Status status;
  call->Finish(&status, nullptr);
  next();
  grpc::Slice bytes;
  if (!answered || !answer.DumpToSingleSlice(&bytes).ok()) return status.error_message();
  return std::string(reinterpret_cast<const char*>(bytes.begin()), bytes.size());
}

TEST_F(ControlServerTest, StatusListsEveryServiceWithTheProblemOfThoseNotReached) {
  const auto status = Client()->Ask(&Operator::GetStatus, {});
  ASSERT_TRUE(status.ok()) << status.status();
  EXPECT_EQ(status->version().release(), "0.1.0");
  EXPECT_EQ(status->version().layout_version(), 2u);
  EXPECT_EQ(status->version().protocol_version(), 1u);
  EXPECT_EQ(status->control_pid(), getpid());
  ASSERT_EQ(status->services_size(), 2);
  EXPECT_EQ(status->services(0).name(), "kv");
  EXPECT_TRUE(status->services(0).reachable());
  EXPECT_EQ(status->services(0).keeper_pid(), 4711);
  EXPECT_EQ(status->services(1).name(), "nvme");
  EXPECT_FALSE(status->services(1).reachable());
  EXPECT_THAT(status->services(1).problem(), HasSubstr(state_dir_ + "/nvme.keeper.sock"));
}

TEST_F(ControlServerTest, ListsAndDescribesServices) {
  const auto client = Client();
  const auto list = client->Ask(&Operator::ListServices, {});
  ASSERT_TRUE(list.ok()) << list.status();
  EXPECT_EQ(list->services_size(), 2);
  const auto request = About<v1::GetServiceRequest>("kv");
  const auto service = client->Ask(&Operator::GetService, request);
  ASSERT_TRUE(service.ok()) << service.status();
  EXPECT_EQ(service->shards_size(), 2);
  EXPECT_EQ(service->workers_size(), 2);
  EXPECT_EQ(service->service().version().release(), "0.1.0");
}

TEST_F(ControlServerTest, AnUnknownServiceIsNotFoundAndTheKnownAreNamed) {
  const auto request = About<v1::GetServiceRequest>("shop");
  const auto service = Client()->Ask(&Operator::GetService, request);
  EXPECT_EQ(service.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(service.status().message()), HasSubstr("kv, nvme"));
}

TEST_F(ControlServerTest, WorkersOfAllServicesCarryAWarningForThoseNotReached) {
  const auto client = Client();
  const auto workers = client->Ask(&Operator::ListWorkers, {});
  ASSERT_TRUE(workers.ok()) << workers.status();
  ASSERT_EQ(workers->workers_size(), 2);
  EXPECT_EQ(workers->workers(1).service(), "kv");
  EXPECT_EQ(workers->workers(1).worker().id(), 2u);
  EXPECT_THAT(client->TakeWarnings(), ElementsAre(HasSubstr("nvme.keeper.sock")));
}

TEST_F(ControlServerTest, AWarningThatIsNoAsciiEndsNobody) {
  SetDownReason(state_dir_, "nvme", "Ger\u00e4t \xff fehlt");
  const auto client = Client();
  const auto workers = client->Ask(&Operator::ListWorkers, {});
  ASSERT_TRUE(workers.ok()) << workers.status();
  EXPECT_THAT(client->TakeWarnings(), ElementsAre(HasSubstr("is down: Ger??t ? fehlt")));
  // Where UTF-8 can be, it is.
  const auto status = client->Ask(&Operator::GetStatus, {});
  ASSERT_TRUE(status.ok()) << status.status();
  EXPECT_THAT(status->services(1).problem(), HasSubstr("is down: Ger\u00e4t ? fehlt"));
}

TEST_F(ControlServerTest, WarningsAndReasonsOfAnyLengthLeaveTheAnswer) {
  SetDownReason(state_dir_, "nvme", std::string(20'000, 'x'));
  for (int i = 0; i < 40; ++i) {
    const std::string name = absl::StrCat("down", i);
    config_.add_services(name);
    SetDownReason(state_dir_, name, std::string(20'000, 'x'));
  }
  StartControl();
  const auto client = Client();
  const auto workers = client->Ask(&Operator::ListWorkers, {});
  ASSERT_TRUE(workers.ok()) << workers.status();
  EXPECT_EQ(workers->workers_size(), 2);
  const std::vector<std::string> warnings = client->TakeWarnings();
  ASSERT_EQ(warnings.size(), 9u);
  EXPECT_THAT(warnings.back(), HasSubstr("33 more services"));
  const auto request = About<v1::GetServiceRequest>("nvme");
  EXPECT_EQ(client->Ask(&Operator::GetService, request).status().code(),
            absl::StatusCode::kUnavailable);
}

TEST_F(ControlServerTest, FindsOneWorker) {
  auto request = About<v1::GetWorkerRequest>("kv");
  request.set_worker_id(2);
  const auto worker = Client()->Ask(&Operator::GetWorker, request);
  ASSERT_TRUE(worker.ok()) << worker.status();
  EXPECT_EQ(worker->worker().name(), "kv-new");
  request.set_worker_id(3);
  EXPECT_EQ(Client()->Ask(&Operator::GetWorker, request).status().code(),
            absl::StatusCode::kNotFound);
}

TEST_F(ControlServerTest, KillsAWorkerThroughItsKeeper) {
  const auto client = Client();
  auto request = About<v1::KillWorkerRequest>("kv");
  request.set_worker_id(2);
  ASSERT_TRUE(client->Ask(&Operator::KillWorker, request).ok());
  EXPECT_EQ(keeper_->CountRequests([](const auto& r) { return r.kill_worker().worker_id() == 2; }),
            1u);
  request.set_worker_id(101);
  EXPECT_EQ(client->Ask(&Operator::KillWorker, request).status().code(),
            absl::StatusCode::kNotFound);
  request.set_worker_id(0);
  EXPECT_EQ(client->Ask(&Operator::KillWorker, request).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(ControlServerTest, FindsShards) {
  const auto client = Client();
  const auto list = About<v1::ListShardsRequest>("kv");
  const auto shards = client->Ask(&Operator::ListShards, list);
  ASSERT_TRUE(shards.ok()) << shards.status();
  EXPECT_EQ(shards->shards_size(), 2);
  auto request = About<v1::GetShardRequest>("kv");
  const auto shard = client->Ask(&Operator::GetShard, request);
  ASSERT_TRUE(shard.ok()) << shard.status();
  EXPECT_EQ(shard->shard().last_report().cause(), "crash");
  request.set_shard(2);
  EXPECT_EQ(client->Ask(&Operator::GetShard, request).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(ControlServerTest, PagesThroughConnections) {
  const auto client = Client();
  auto request = About<v1::ListConnectionsRequest>("kv");
  request.set_shard(-1);
  request.set_page_size(2);
  auto page = client->Ask(&Operator::ListConnections, request);
  ASSERT_TRUE(page.ok()) << page.status();
  EXPECT_EQ(page->connections_size(), 2);
  EXPECT_EQ(page->next_page_start(), 5u);
  request.set_page_start(5);
  page = client->Ask(&Operator::ListConnections, request);
  ASSERT_TRUE(page.ok()) << page.status();
  ASSERT_EQ(page->connections_size(), 1);
  EXPECT_EQ(page->connections(0).connection().index(), 5u);
  EXPECT_EQ(page->next_page_start(), 0u);
  request.set_page_size(10001);
  EXPECT_EQ(client->Ask(&Operator::ListConnections, request).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(ControlServerTest, FindsOneConnection) {
  const auto client = Client();
  auto request = About<v1::GetConnectionRequest>("kv");
  request.set_connection(5);
  const auto connection = client->Ask(&Operator::GetConnection, request);
  ASSERT_TRUE(connection.ok()) << connection.status();
  EXPECT_EQ(connection->connection().last_error(), "retry exceeded");
  request.set_connection(2);  // the next that exists is not taken for it
  EXPECT_EQ(client->Ask(&Operator::GetConnection, request).status().code(),
            absl::StatusCode::kNotFound);
}

TEST_F(ControlServerTest, RefusedChangesDoNotWashTheRecordAway) {
  const auto client = Client();
  auto kill = About<v1::KillWorkerRequest>("kv");
  kill.set_worker_id(2);
  ASSERT_TRUE(client->Ask(&Operator::KillWorker, kill).ok());
  kill.set_worker_id(0);
  int untried = 0;
  for (int i = 0; i < 4000; ++i) {
    untried += absl::IsResourceExhausted(client->Ask(&Operator::KillWorker, kill).status());
  }
  EXPECT_GT(untried, 2000);
  v1::WatchEventsRequest changes;
  changes.set_changes(true);
  changes.set_service("kv");
  std::vector<v1::Event> on_record;
  ASSERT_TRUE(
      client->WatchEvents(changes, [&](const v1::Event& event) { on_record.push_back(event); })
          .ok());
  ASSERT_FALSE(on_record.empty());
  EXPECT_EQ(on_record.front().change().number(), 1u);
  changes.set_service("");
  std::vector<std::string> coalesced;
  (void)client->WatchEvents(changes, [&](const v1::Event& event) {
    if (event.change().what() == "TooMany" && event.change().done()) {
      coalesced.push_back(event.change().outcome());
    }
  });
  ASSERT_FALSE(coalesced.empty());
  EXPECT_THAT(coalesced.front(), HasSubstr("1 of its changes were not tried"));
}

TEST_F(ControlServerTest, shouldShowWhatBatondReports) {
  internal::BatondReply news;
  *news.mutable_config() = config_;
  for (const char* const kind : {"driver_followed", "control_followed"}) {
    v1::Event* const event = news.add_events();
    *event = KvEvent(static_cast<uint64_t>(news.events_size()), kind, "follows");
    event->set_service(news.events_size() == 1 ? "kv" : "");
  }
  batond_.Tell(news);
  batond_.Tell(news);  // as another batond would
  const auto kinds = [&](const std::string& service) {
    const auto request = About<v1::WatchEventsRequest>(service);
    std::vector<std::string> seen;
    (void)Client()->WatchEvents(request,
                                [&](const v1::Event& event) { seen.push_back(event.kind()); });
    return seen;
  };
  ASSERT_TRUE(harness::WaitUntil("the events", [&] { return kinds("").size() >= 2; }).ok());
  EXPECT_THAT(kinds(""), testing::UnorderedElementsAre("driver_followed", "control_followed"));
  EXPECT_THAT(kinds("kv"), testing::ElementsAre("driver_followed"));
}

TEST_F(ControlServerTest, ChangesThatFailDoNotWashTheRecordAway) {
  const auto client = Client();
  auto handoff = About<v1::HandoffRequest>("nobody");
  for (uint32_t shard = 0; shard < 300; ++shard) handoff.add_shards(100'000 + shard);
  int tried = 0, untried = 0;
  std::string why;
  for (int i = 0; i < 800; ++i) {
    const absl::Status status = client->Ask(&Operator::Handoff, handoff).status();
    if (absl::IsNotFound(status)) ++tried;
    if (!absl::IsResourceExhausted(status)) continue;
    if (untried++ == 0) why = std::string(status.message());
  }
  EXPECT_GT(tried, 100);
  EXPECT_GT(untried, 100);
  EXPECT_EQ(tried + untried, 800);
  EXPECT_THAT(why,
              HasSubstr("have failed lately, this one too, and it was not tried again: wait "));
  struct stat file = {};
  ASSERT_EQ(stat((state_dir_ + "/audit.log").c_str(), &file), 0);
  EXPECT_LT(file.st_size, (1 << 20) + (64 << 10));
  // Whatever was tried is on record twice, and the others together.
  v1::WatchEventsRequest changes;
  changes.set_changes(true);
  int begun = 0, ended = 0, coalesced = 0;
  ASSERT_TRUE(client
                  ->WatchEvents(changes,
                                [&](const v1::Event& event) {
                                  const v1::Change& change = event.change();
                                  coalesced += change.what() == "TooMany" && change.done();
                                  if (change.what() != "Handoff") return;
                                  ++(change.done() ? ended : begun);
                                })
                  .ok());
  EXPECT_EQ(begun, tried);
  EXPECT_EQ(ended, tried);
  EXPECT_GE(coalesced, 1);
}

TEST_F(ControlServerTest, shouldSayThatAChangeWasNotTriedBecauseOthersHaveFailed) {
  const auto client = Client();
  auto handoff = About<v1::HandoffRequest>("nobody");
  for (uint32_t shard = 0; shard < 300; ++shard) handoff.add_shards(100'000 + shard);
  for (uint64_t worker = 1; worker < 64; ++worker) {
    handoff.set_to_worker_id(worker);
    EXPECT_TRUE(absl::IsNotFound(client->Ask(&Operator::Handoff, handoff).status())) << worker;
  }
  absl::Status status;
  handoff.set_to_worker_id(64);
  for (int i = 0; i < 800 && !absl::IsResourceExhausted(status); ++i) {
    status = client->Ask(&Operator::Handoff, handoff).status();
  }
  EXPECT_THAT(std::string(status.message()), HasSubstr("this one too, and it was not tried again"));
  // The budget fills by some bytes a second: should one be tried because of that, the next is not.
  for (uint64_t worker = 65; worker <= 67; ++worker) {
    handoff.set_to_worker_id(worker);
    status = client->Ask(&Operator::Handoff, handoff).status();
  }
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("so many different ones that this one was not tried either: wait "));
}

TEST_F(ControlServerTest, KeepsTheRecordWhereItIsTold) {
  const std::string own = state_dir_ + "/own";
  ASSERT_EQ(mkdir(own.c_str(), 0700), 0);
  config_.set_audit_directory(own);
  StartControl();
  auto kill = About<v1::KillWorkerRequest>("kv");
  kill.set_worker_id(2);
  ASSERT_TRUE(Client()->Ask(&Operator::KillWorker, kill).ok());
  struct stat file = {};
  ASSERT_EQ(stat((own + "/audit.log").c_str(), &file), 0);
  EXPECT_GT(file.st_size, 0);
  // This one belongs to the control before it, which was asked for nothing.
  ASSERT_EQ(stat((state_dir_ + "/audit.log").c_str(), &file), 0);
  EXPECT_EQ(file.st_size, 0);
}

TEST_F(ControlServerTest, HandsOff) {
  internal::ManagementReply reply;
  reply.mutable_handoff()->set_to_worker_id(2);
  reply.mutable_handoff()->add_shards(0);
  reply.mutable_handoff()->set_slowest_blackout_us(33.5);
  keeper_->SetHandoff(reply);
  const auto client = Client();
  auto request = About<v1::HandoffRequest>("kv");
  request.add_shards(0);
  request.set_to_worker_id(2);
  request.set_timeout_ms(1500);
  const auto response = client->Ask(&Operator::Handoff, request);
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_EQ(response->to_worker_id(), 2u);
  EXPECT_DOUBLE_EQ(response->slowest_blackout_us(), 33.5);
  EXPECT_EQ(keeper_->CountRequests([](const auto& r) {
    return r.has_handoff() && r.handoff().timeout_ms() == 1500 && r.handoff().to_worker_id() == 2 &&
           r.handoff().shards_size() == 1;
  }),
            1u);
  request.add_shards(7);
  EXPECT_EQ(client->Ask(&Operator::Handoff, request).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(ControlServerTest, PassesOnWhyAKeeperRefusesAHandoff) {
  internal::ManagementReply reply;
  reply.set_status_code(static_cast<int>(absl::StatusCode::kFailedPrecondition));
  reply.set_status_message("no worker is ready");
  keeper_->SetHandoff(reply);
  const auto request = About<v1::HandoffRequest>("kv");
  const auto response = Client()->Ask(&Operator::Handoff, request);
  EXPECT_EQ(response.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(response.status().message(), "no worker is ready");
}

TEST_F(ControlServerTest, PassesAnUpgradeToTheKeeperAsItIsPlanned) {
  keeper_->PlanUpgrade({KvUpgrade(3, v1::UPGRADE_PHASE_STARTING)});
  auto request = About<v1::UpgradeRequest>("kv");
  v1::UpgradePlan* plan = request.mutable_plan();
  plan->set_exec("/opt/kv-1.1");
  plan->add_arguments("--fast");
  plan->set_replace_arguments(true);
  plan->set_workers(2);
  plan->set_ready_timeout_ms(1500);
  plan->set_watch_window_ms(2500);
  plan->set_no_rollback(true);
  const auto response = Client()->Ask(&Operator::Upgrade, request);
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_EQ(response->version().release(), "0.1.0");
  EXPECT_EQ(response->upgrade().id(), 3u);
  EXPECT_EQ(response->upgrade().phase(), v1::UPGRADE_PHASE_STARTING);
  EXPECT_EQ(keeper_->CountRequests([&](const auto& r) {
    return r.has_upgrade() && r.upgrade().SerializeAsString() == plan->SerializeAsString();
  }),
            1u);
}

TEST_F(ControlServerTest, RefusesAnUpgradeToNothing) {
  const auto request = About<v1::UpgradeRequest>("kv");
  EXPECT_EQ(Client()->Ask(&Operator::Upgrade, request).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(keeper_->CountRequests([](const auto& r) { return r.has_upgrade(); }), 0u);
}

TEST_F(ControlServerTest, PassesOnWhyAKeeperRefusesAnUpgrade) {
  keeper_->RefuseUpgrades(absl::FailedPreconditionError("upgrade 2 is under way"));
  auto upgrade = About<v1::UpgradeRequest>("kv");
  upgrade.mutable_plan()->set_exec("/opt/kv-1.1");
  const auto refused = Client()->Ask(&Operator::Upgrade, upgrade);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(refused.status().message(), "upgrade 2 is under way");
  auto rollback = About<v1::RollbackRequest>("kv");
  EXPECT_EQ(Client()->Ask(&Operator::Rollback, rollback).status().code(),
            absl::StatusCode::kFailedPrecondition);
  rollback.set_service("shop");
  EXPECT_EQ(Client()->Ask(&Operator::Rollback, rollback).status().code(),
            absl::StatusCode::kNotFound);
  upgrade.set_service("nvme");
  EXPECT_EQ(Client()->Ask(&Operator::Upgrade, upgrade).status().code(),
            absl::StatusCode::kUnavailable);
}

TEST_F(ControlServerTest, AKeeperThatBeginsNothingIsAnError) {
  const auto request = About<v1::RollbackRequest>("kv");
  EXPECT_EQ(Client()->Ask(&Operator::Rollback, request).status().code(),
            absl::StatusCode::kInternal);
}

TEST_F(ControlServerTest, RollsBack) {
  keeper_->PlanUpgrade({KvUpgrade(3, v1::UPGRADE_PHASE_RETURNING)});
  auto request = About<v1::RollbackRequest>("kv");
  request.set_ready_timeout_ms(1500);
  request.set_watch_window_ms(2500);
  request.set_no_rollback(true);
  const auto response = Client()->Ask(&Operator::Rollback, request);
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_EQ(response->upgrade().phase(), v1::UPGRADE_PHASE_RETURNING);
  EXPECT_EQ(keeper_->CountRequests([](const auto& r) {
    return r.rollback().ready_timeout_ms() == 1500 && r.rollback().watch_window_ms() == 2500 &&
           r.rollback().no_rollback();
  }),
            1u);
}

TEST_F(ControlServerTest, ListsUpgradesInTheKeepersOrder) {
  keeper_->SetUpgrades(
      {KvUpgrade(2, v1::UPGRADE_PHASE_WATCHING), KvUpgrade(1, v1::UPGRADE_PHASE_FAILED)});
  auto request = About<v1::ListUpgradesRequest>("kv");
  const auto list = Client()->Ask(&Operator::ListUpgrades, request);
  ASSERT_TRUE(list.ok()) << list.status();
  ASSERT_EQ(list->upgrades_size(), 2);
  EXPECT_EQ(list->upgrades(0).id(), 2u);
  EXPECT_EQ(list->upgrades(1).phase(), v1::UPGRADE_PHASE_FAILED);
  request.set_service("nvme");
  EXPECT_EQ(Client()->Ask(&Operator::ListUpgrades, request).status().code(),
            absl::StatusCode::kUnavailable);
}

TEST_F(ControlServerTest, SetsAPolicyAsTheKeeperHasIt) {
  auto request = About<v1::SetPolicyRequest>("kv");
  request.mutable_policy()->mutable_service()->set_connections(7);
  request.set_validate_only(true);
  const auto set = Client()->Ask(&Operator::SetPolicy, request);
  ASSERT_TRUE(set.ok()) << set.status();
  EXPECT_EQ(set->policy().service().connections(), 7u);
  EXPECT_EQ(keeper_->CountRequests([](const auto& r) {
    return r.set_policy().validate_only() && r.set_policy().policy().service().connections() == 7;
  }),
            1u);
  keeper_->RefusePolicies(absl::InvalidArgumentError("policy.p_keys: 0 is no P_Key"));
  const absl::Status refused = Client()->Ask(&Operator::SetPolicy, request).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("policy.p_keys: 0"));
}

TEST_F(ControlServerTest, AKeeperThatIsGoneIsUnavailableUntilItIsBack) {
  const auto client = Client();
  const auto request = About<v1::GetServiceRequest>("kv");
  ASSERT_TRUE(client->Ask(&Operator::GetService, request).ok());
  keeper_->Stop();
  const auto gone = client->Ask(&Operator::GetService, request);
  EXPECT_EQ(gone.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(gone.status().message()), HasSubstr(state_dir_ + "/kv.keeper.sock"));
  EXPECT_THAT(std::string(gone.status().message()), HasSubstr("batond"));
  keeper_->Start();
  EXPECT_TRUE(client->Ask(&Operator::GetService, request).ok());
}

TEST_F(ControlServerTest, TellsWhyThereIsNoKeeper) {
  const auto request = About<v1::GetServiceRequest>("nvme");
  SetDownReason(state_dir_, "nvme", "device mlx5_0 is lost:\nit was removed");
  const auto down = Client()->Ask(&Operator::GetService, request);
  EXPECT_EQ(down.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(
      std::string(down.status().message()),
      HasSubstr("service \"nvme\" is down: device mlx5_0 is lost: it was removed; batond tries"));
  SetDownReason(state_dir_, "nvme", "");
  EXPECT_THAT(std::string(Client()->Ask(&Operator::GetService, request).status().message()),
              HasSubstr("cannot be reached"));
}

TEST_F(ControlServerTest, AKeeperThatHangsIsUnavailable) {
  keeper_->SetAnswering(false);
  const auto request = About<v1::GetServiceRequest>("kv");
  const auto hung = Client()->Ask(&Operator::GetService, request);
  EXPECT_EQ(hung.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(hung.status().message()), HasSubstr("has not answered"));
}

TEST_F(ControlServerTest, TellsWhatIsLogged) {
  keeper_->Log(KvEvent(1, "worker_attached", "kv-old"));
  keeper_->Log(KvEvent(2, "shard_moved", "to kv-old"));
  StartControl();  // an event that is logged is told by a control that has just begun, too
  const auto request = About<v1::WatchEventsRequest>("kv");
  std::vector<std::string> kinds;
  const absl::Status end = Client()->WatchEvents(
      request, [&](const v1::Event& event) { kinds.push_back(event.kind()); });
  EXPECT_TRUE(end.ok()) << end;
  EXPECT_THAT(kinds, ElementsAre("worker_attached", "shard_moved"));
}

TEST_F(ControlServerTest, TellsTheEventsItHasWhenAKeeperIsGoneAndThatItIs) {
  keeper_->Log(KvEvent(1, "worker_attached", "kv-old"));
  std::vector<std::string> kinds;
  // The event reaches control some time after it was logged.
  EXPECT_TRUE(harness::WaitUntil("the keeper's event", [&] {
                kinds.clear();
                const absl::Status end = Client()->WatchEvents(
                    {}, [&](const v1::Event& event) { kinds.push_back(event.kind()); });
                EXPECT_EQ(end.code(), absl::StatusCode::kUnavailable);
                return !kinds.empty();
              }).ok());
  EXPECT_THAT(kinds, ElementsAre("worker_attached"));
}

TEST_F(ControlServerTest, FollowsEventsOverARestartOfTheKeeper) {
  keeper_->Log(KvEvent(1, "first", ""));
  const auto stub = v1::OperatorService::NewStub(Channel(OperatorSocketPath(state_dir_)));
  grpc::ClientContext context;
  auto request = About<v1::WatchEventsRequest>("kv");
  request.set_follow(true);
  const auto reader = stub->WatchEvents(&context, request);
  v1::WatchEventsResponse response;
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_EQ(response.event().kind(), "first");
  keeper_->Log(KvEvent(2, "second", ""));
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_EQ(response.event().kind(), "second");
  keeper_->Stop();
  keeper_->Start();
  keeper_->Log(KvEvent(3, "third", ""));
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_EQ(response.event().kind(), "third");
  context.TryCancel();
  EXPECT_FALSE(reader->Read(&response));
}

TEST_F(ControlServerTest, AFollowerThatDoesNotReadIsCutOffAndTold) {
  constexpr uint64_t kEvents = 20000;  // more than may wait for one follower
  const std::string text(200, 'x');
  keeper_->Log(KvEvent(1, "first", ""));
  // gRPC reads 64 KiB ahead for its caller, and no more.
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 65536);
  const auto stub = v1::OperatorService::NewStub(grpc::CreateCustomChannel(
      "unix:" + OperatorSocketPath(state_dir_), grpc::InsecureChannelCredentials(), arguments));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
  auto request = About<v1::WatchEventsRequest>("kv");
  request.set_follow(true);
  const auto reader = stub->WatchEvents(&context, request);
  v1::WatchEventsResponse response;
  ASSERT_TRUE(reader->Read(&response));
  for (uint64_t i = 2; i <= kEvents; ++i) keeper_->Log(KvEvent(i, "more", text));
  request.set_follow(false);
  for (uint64_t last = 0; last < kEvents;) {  // until control has them all
    ASSERT_TRUE(
        Client()->WatchEvents(request, [&](const v1::Event& e) { last = e.sequence(); }).ok());
  }
  uint64_t sequence = 1;
  while (reader->Read(&response)) ASSERT_EQ(response.event().sequence(), ++sequence);
  EXPECT_LT(sequence, kEvents);
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
}

TEST_F(ControlServerTest, StopsWithFollowersAndHandoffsUnderWay) {
  keeper_->Log(KvEvent(1, "first", ""));
  const auto stub = v1::OperatorService::NewStub(Channel(OperatorSocketPath(state_dir_)));
  grpc::ClientContext context;
  auto request = About<v1::WatchEventsRequest>("kv");
  request.set_follow(true);
  const auto reader = stub->WatchEvents(&context, request);
  v1::WatchEventsResponse response;
  ASSERT_TRUE(reader->Read(&response));
  keeper_->SetAnswering(false);
  absl::Status killed;
  std::thread caller([&] {
    auto kill = About<v1::KillWorkerRequest>("kv");
    kill.set_worker_id(1);
    killed = Client()->Ask(&Operator::KillWorker, kill).status();
  });
  ASSERT_TRUE(keeper_->WaitForRequest([](const auto& r) { return r.has_kill_worker(); }));
  control_.reset();
  caller.join();
  EXPECT_EQ(killed.code(), absl::StatusCode::kUnavailable);
  // The stream ends; what was tried is on record before that.
  while (reader->Read(&response)) EXPECT_EQ(response.event().kind(), "change");
}

TEST_F(ControlServerTest, HealthAndReflectionAnswerOnBothSockets) {
  const std::vector<std::pair<std::string, std::string>> sockets = {
      {OperatorSocketPath(state_dir_), "baton.v1.OperatorService"},
      {ControlSocketPath(state_dir_), "baton.v1.WorkerService"}};
  for (const auto& [path, service] : sockets) {
    const auto channel = Channel(path);
    // HealthCheckRequest{service} -> HealthCheckResponse{SERVING}
    const std::string request = std::string("\x0a") + static_cast<char>(service.size()) + service;
    EXPECT_EQ(CallRaw(channel, "/grpc.health.v1.Health/Check", request), "\x08\x01");
    EXPECT_EQ(CallRaw(channel, "/grpc.health.v1.Health/Check", ""), "\x08\x01");
    // ServerReflectionRequest{list_services: "*"}
    EXPECT_THAT(CallRaw(channel, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
                        "\x3a\x01*"),
                HasSubstr(service));
  }
}

TEST_F(ControlServerTest, ASecondControlIsRefusedAndAStaleSocketIsNot) {
  const auto second = ControlServer::Start(config_);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists);
  control_.reset();
  ASSERT_EQ(access(OperatorSocketPath(state_dir_).c_str(), F_OK), 0);
  StartControl();
  EXPECT_TRUE(Client()->Ask(&Operator::GetStatus, {}).ok());
}

// What a client of uid 65534 in `groups` is answered. It connects in a child; gRPC, which is in
// this process already, is not used there.
class OtherUser : public ControlServerTest {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
    ControlServerTest::SetUp();
  }

  std::shared_ptr<grpc::Channel> ChannelAs(std::vector<gid_t> groups) {
    int pair[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    MessageChannel to_child{FileDescriptor(pair[0])};
    const std::string path = OperatorSocketPath(state_dir_);
    const pid_t child = fork();
    if (child == 0) {
      MessageChannel to_parent{FileDescriptor(pair[1])};
      if (setgroups(groups.size(), groups.data()) != 0 || setgid(65534) != 0 ||
          setuid(65534) != 0) {
        _exit(1);
      }
      const auto socket = ConnectUnix(path);
      if (!socket.ok()) _exit(2);
      _exit(to_parent.Send(internal::Describe(), {socket->get()}).ok() ? 0 : 3);
    }
    close(pair[1]);
    std::vector<FileDescriptor> sockets;
    internal::Describe ignored;
    EXPECT_TRUE(to_child.Receive(&ignored, -1, &sockets).ok());
    int child_status = -1;
    waitpid(child, &child_status, 0);
    EXPECT_EQ(child_status, 0);
    if (sockets.size() != 1) return nullptr;
    fcntl(sockets[0].get(), F_SETFL, O_NONBLOCK);
    return grpc::CreateInsecureChannelFromFd("batond", sockets[0].Release());
  }

  grpc::Status StatusAs(std::vector<gid_t> groups) {
    const auto stub = v1::OperatorService::NewStub(ChannelAs(std::move(groups)));
    grpc::ClientContext context;
    v1::GetStatusResponse response;
    return stub->GetStatus(&context, {}, &response);
  }
};

TEST_F(OtherUser, IsRefusedWithTheReason) {
  const grpc::Status status = StatusAs({});
  EXPECT_EQ(status.error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_THAT(status.error_message(), HasSubstr("uid 65534 may not operate Baton"));
  EXPECT_THAT(status.error_message(), HasSubstr("operator_uids"));
}

TEST_F(OtherUser, IsServedWhenItsUidIsAnOperator) {
  config_.add_operator_uids(65534);
  StartControl();
  EXPECT_TRUE(StatusAs({}).ok());
}

TEST_F(OtherUser, IsCutOffWhenItIsNoOperatorAnyMore) {
  config_.add_operator_uids(65534);
  StartControl();
  const auto stub = v1::OperatorService::NewStub(ChannelAs({}));
  const auto look = [&] {
    grpc::ClientContext context;
    v1::GetStatusResponse response;
    return stub->GetStatus(&context, {}, &response);
  };
  ASSERT_TRUE(look().ok());
  grpc::ClientContext following;
  v1::WatchEventsRequest follow;
  follow.set_follow(true);
  const auto events = stub->WatchEvents(&following, follow);
  internal::BatondReply reply;
  *reply.mutable_config() = config_;
  reply.mutable_config()->clear_operator_uids();
  reply.add_taken("operator_uids");
  batond_.SetReply(reply);
  const auto root = OperatorClient::Connect(OperatorSocketPath(state_dir_), 20);
  ASSERT_TRUE(root.ok());
  const auto reloaded = (*root)->Ask(&Operator::Reload, {});
  ASSERT_TRUE(reloaded.ok()) << reloaded.status();
  EXPECT_THAT(reloaded->taken(), testing::ElementsAre("operator_uids"));
  v1::WatchEventsResponse event;
  while (events->Read(&event)) {
  }
  EXPECT_FALSE(events->Finish().ok());
  EXPECT_FALSE(look().ok());
  EXPECT_THAT(StatusAs({}).error_message(), HasSubstr("uid 65534 may not operate Baton"));
  EXPECT_TRUE((*root)->Ask(&Operator::GetStatus, {}).ok());
  // The other way, without having been asked.
  *reply.mutable_config() = config_;
  batond_.Tell(reply);
  EXPECT_TRUE(harness::WaitUntil("the new role", [&] { return StatusAs({}).ok(); }).ok());
}

TEST_F(OtherUser, IsServedWhenOneOfItsGroupsIsAnOperators) {
  config_.add_operator_gids(4321);
  StartControl();
  EXPECT_FALSE(StatusAs({1234}).ok());
  EXPECT_TRUE(StatusAs({1234, 4321}).ok());
}

TEST_F(OtherUser, LooksAndChangesNothingAsAViewer) {
  config_.add_viewer_gids(4321);
  StartControl();
  EXPECT_FALSE(StatusAs({1234}).ok());
  EXPECT_TRUE(StatusAs({4321}).ok());
  const auto channel = ChannelAs({4321});
  const auto* service =
      v1::GetStatusRequest::descriptor()->file()->FindServiceByName("OperatorService");
  for (int i = 0; i < service->method_count(); ++i) {
    const std::string name = service->method(i)->name();
    if (name.starts_with("Get") || name.starts_with("List")) continue;
    const std::string answer = CallRaw(channel, "/" + service->full_name() + "/" + name, "");
    if (name == "WatchEvents") continue;  // ends with what is logged
    EXPECT_THAT(answer, HasSubstr("uid 65534 may look and change nothing, and " + name)) << name;
    EXPECT_THAT(answer, HasSubstr("operator_uids")) << name;
  }
  EXPECT_THAT(CallRaw(channel, "/baton.v1.OperatorService/Unheard", ""),
              HasSubstr("operator_gids"));
  EXPECT_THAT(CallRaw(channel, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
                      "\x3a\x01*"),
              HasSubstr("baton.v1.OperatorService"));
  EXPECT_EQ(
      keeper_->CountRequests([](const auto& r) { return !r.has_describe() && !r.has_subscribe(); }),
      0u);
}

// Lines of the log, from here on.
class LoggedLines {
 public:
  LoggedLines() {
    spdlog::set_default_logger(std::make_shared<spdlog::logger>(
        "test", std::make_shared<spdlog::sinks::ostream_sink_mt>(text_)));
  }
  ~LoggedLines() { spdlog::set_default_logger(former_); }

  // When nobody writes any more.
  std::vector<std::string> With(const std::string& part) const {
    std::vector<std::string> lines;
    std::istringstream text(text_.str());
    for (std::string line; std::getline(text, line);) {
      if (line.find(part) != std::string::npos) lines.push_back(line);
    }
    return lines;
  }

 private:
  std::ostringstream text_;
  const std::shared_ptr<spdlog::logger> former_ = spdlog::default_logger();
};

TEST_F(OtherUser, FillsNoLogByBeingRefused) {
  config_.add_viewer_gids(4321);
  control_.reset();
  const LoggedLines lines;
  StartControl();
  const auto began = std::chrono::steady_clock::now();
  const auto stub = v1::OperatorService::NewStub(ChannelAs({4321}));
  for (int i = 0; i < 3000; ++i) {
    grpc::ClientContext context;
    v1::KillWorkerResponse response;
    EXPECT_EQ(stub->KillWorker(&context, {}, &response).error_code(),
              grpc::StatusCode::PERMISSION_DENIED);
  }
  for (int i = 0; i < 40; ++i) EXPECT_FALSE(StatusAs({1234}).ok());
  control_.reset();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  // A burst of 20 of each kind, then 2 a second.
  EXPECT_LE(lines.With("refused").size(), 2 * (20 + 2 * took.count() + 1));
  EXPECT_FALSE(lines.With("uid 65534 may look and change nothing").empty());
  EXPECT_FALSE(lines.With("refused uid 65534 pid").empty());
}

TEST_F(ControlServerTest, LogsWhoHasAskedForEveryChange) {
  control_.reset();
  const LoggedLines lines;
  StartControl();
  const auto stub = v1::OperatorService::NewStub(Channel(OperatorSocketPath(state_dir_)));
  const auto call = [&](auto method, auto request, auto response) {
    grpc::ClientContext context;
    request.set_service("kv");
    if constexpr (requires { request.set_worker_id(2); }) request.set_worker_id(77);
    if constexpr (requires { request.mutable_plan(); }) request.mutable_plan()->set_exec("/kv");
    (void)((*stub).*method)(&context, request, &response);
  };
  using Stub = v1::OperatorService::Stub;
  call(&Stub::StopWorker, v1::StopWorkerRequest(), v1::StopWorkerResponse());
  call(&Stub::KillWorker, v1::KillWorkerRequest(), v1::KillWorkerResponse());
  call(&Stub::Handoff, v1::HandoffRequest(), v1::HandoffResponse());
  call(&Stub::Upgrade, v1::UpgradeRequest(), v1::UpgradeResponse());
  call(&Stub::Rollback, v1::RollbackRequest(), v1::RollbackResponse());
  control_.reset();
  const std::string who = absl::StrCat("uid ", geteuid(), " pid ", getpid());
  EXPECT_EQ(lines.With(who).size(), 5u);
}

TEST_F(OtherUser, HearsOfEventsAsAViewer) {
  config_.add_viewer_uids(65534);
  StartControl();
  keeper_->Log(KvEvent(1, "worker_dead", "worker 9 died"));
  const auto stub = v1::OperatorService::NewStub(ChannelAs({}));
  grpc::ClientContext context;
  const auto reader = stub->WatchEvents(&context, {});
  v1::WatchEventsResponse response;
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_EQ(response.event().kind(), "worker_dead");
}

}  // namespace
}  // namespace baton
