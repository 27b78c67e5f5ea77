// A running keeper takes a part of a changed configuration.
#include "supervisor/keeper/policy/live_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/clock.h"
#include "supervisor/driver/driver_host.h"
#include "supervisor/keeper/keeper.h"
#include "tests/harness/wait_until.h"
#include "tests/lib/driver/raw_peer.h"
#include "tests/lib/verbs/fabric.h"
#include "tests/supervisor/keeper/keeper_thread.h"
#include "tests/supervisor/keeper/mortal_driver_client.h"

namespace baton::keeper {
namespace {

using driver::testing::RawPeer;
using harness::WaitUntil;
using internal::ConfigTaken;
using ::testing::HasSubstr;
using testing::KeeperThread;
using testing::MortalDriverClient;
using testing::RawClient;

class LiveConfigTest : public ::testing::Test {
 protected:
  LiveConfigTest() {
    EXPECT_EQ(keeper_.Start([&](v1::ServiceConfig* service) {
      service->set_max_listeners(8);
      AddListener(0, service);
      configured_ = *service;
    }),
              absl::OkStatus());
  }

  void AddListener(uint16_t port, v1::ServiceConfig* service) {
    v1::ListenerConfig* const listener = service->add_listeners();
    listener->set_host(fabric_.host);
    listener->set_port(port);
  }
  ConfigTaken Take(const v1::ServiceConfig& wanted) {
    internal::ManagementRequest request;
    *request.mutable_take_config()->mutable_service() = wanted;
    const auto reply = keeper_.Ask(request);
    EXPECT_EQ(reply.status(), absl::OkStatus());
    return reply.ok() ? reply->config_taken() : ConfigTaken();
  }
  // The ports at which the service listens, in the order of their listeners.
  std::vector<uint16_t> Ports() {
    std::vector<uint16_t> ports;
    const internal::Description description = keeper_.Describe();
    for (const v1::Listener& one : description.service().listeners()) {
      ports.push_back(static_cast<uint16_t>(one.port()));
    }
    return ports;
  }
  // A connection that no worker has accepted yet: the service has it among its own.
  absl::Status WaitForConnections(uint32_t count, RawPeer& peer) {
    return WaitUntil("connections", [&] {
      peer.Turn();
      return keeper_.Describe().service().connection_count() == count;
    });
  }
  bool HasEvent(const std::string& kind) {
    for (const v1::Event& event : keeper_.Events()) {
      if (event.kind() == kind) return true;
    }
    return false;
  }

  const verbs::testing::Fabric fabric_ = verbs::testing::FabricUnderTest();
  v1::ServiceConfig configured_;
  KeeperThread keeper_;
};

TEST_F(LiveConfigTest, shouldListenAtAListenerThatWasAdded) {
  const uint16_t free_port = [] {
    RawPeer other;
    return other.Listen();  // free again at its end
  }();
  v1::ServiceConfig wanted = configured_;
  AddListener(free_port, &wanted);
  const ConfigTaken taken = Take(wanted);
  EXPECT_EQ(taken.refused_size(), 0);
  EXPECT_EQ(taken.service().listeners_size(), 2);
  ASSERT_EQ(Ports().size(), 2u);
  EXPECT_EQ(Ports()[1], free_port);
  RawPeer peer;
  peer.Connect(free_port);
  EXPECT_EQ(WaitForConnections(1, peer), absl::OkStatus());
  EXPECT_TRUE(HasEvent("config_taken"));
}

TEST_F(LiveConfigTest, shouldGoOnWithConnectionsOfAListenerThatWasRemoved) {
  ASSERT_EQ(Ports().size(), 1u);
  const uint16_t port = Ports()[0];
  RawPeer before;
  before.Connect(port);
  ASSERT_EQ(WaitForConnections(1, before), absl::OkStatus());
  v1::ServiceConfig wanted = configured_;
  wanted.clear_listeners();
  EXPECT_EQ(Take(wanted).refused_size(), 0);
  EXPECT_TRUE(Ports().empty());
  RawPeer after;
  after.Connect(port);
  EXPECT_EQ(WaitUntil("a refusal",
                      [&] {
                        after.Turn();
                        before.Turn();
                        return after.unreachable || after.rejected;
                      }),
            absl::OkStatus());
  EXPECT_EQ(WaitForConnections(1, before), absl::OkStatus());
  EXPECT_FALSE(before.disconnected || before.rejected || before.unreachable);
}

TEST_F(LiveConfigTest, shouldNameAListenerThatItCannotHaveAndTakeTheRest) {
  RawPeer other;
  v1::ServiceConfig wanted = configured_;
  AddListener(other.Listen(), &wanted);
  wanted.set_max_listeners(5);
  const ConfigTaken taken = Take(wanted);
  ASSERT_EQ(taken.refused_size(), 1);
  EXPECT_EQ(taken.refused(0).field(), "listeners");
  EXPECT_THAT(taken.refused(0).why(), HasSubstr("does not listen at"));
  EXPECT_EQ(taken.service().listeners_size(), 1);
  EXPECT_EQ(taken.service().max_listeners(), 5u);
  EXPECT_EQ(Ports().size(), 1u);
}

TEST_F(LiveConfigTest, shouldReplaceAPolicyOnlyWhenTheConfigurationsChanges) {
  internal::ManagementRequest set;
  set.mutable_set_policy()->mutable_policy()->mutable_worker()->set_connections(3);
  ASSERT_EQ(keeper_.Ask(set).status(), absl::OkStatus());
  v1::ServiceConfig wanted = configured_;
  wanted.set_max_listeners(5);
  Take(wanted);
  EXPECT_EQ(keeper_.Describe().service().policy().worker().connections(), 3u);
  wanted.mutable_policy()->mutable_worker()->set_connections(2);
  EXPECT_EQ(Take(wanted).refused_size(), 0);
  EXPECT_EQ(keeper_.Describe().service().policy().worker().connections(), 2u);
}

TEST_F(LiveConfigTest, shouldRefuseAPolicyThatIsWrongAndKeepTheOneInForce) {
  v1::ServiceConfig wanted = configured_;
  wanted.mutable_policy()->mutable_service()->set_connections(1'000'000);
  const ConfigTaken taken = Take(wanted);
  ASSERT_EQ(taken.refused_size(), 1);
  EXPECT_EQ(taken.refused(0).field(), "policy");
  EXPECT_EQ(taken.service().policy().service().connections(), 0u);
}

TEST_F(LiveConfigTest, shouldHoldAWorkerToTheNewLimitOfListeners) {
  v1::ServiceConfig wanted = configured_;
  wanted.set_max_listeners(1);
  Take(wanted);
  RawClient client(keeper_.socket());
  ASSERT_EQ(client.Attach(), absl::OkStatus());
  internal::WorkerRequest request;
  request.mutable_listen()->set_host("::1");
  EXPECT_FALSE(client.Ask(request).ok());
  wanted.set_max_listeners(2);
  Take(wanted);
  EXPECT_EQ(client.Ask(request).status(), absl::OkStatus());
}

TEST_F(LiveConfigTest, shouldSayWhatNeedsAnotherKeeperAndTakeTheRest) {
  v1::ServiceConfig wanted = configured_;
  wanted.set_shards(configured_.shards() + 1);
  wanted.set_poison_deaths(9);
  const ConfigTaken taken = Take(wanted);
  ASSERT_EQ(taken.refused_size(), 1);
  EXPECT_EQ(taken.refused(0).field(), "shards");
  EXPECT_EQ(taken.refused(0).ends_connections_of(), configured_.name());
  EXPECT_EQ(taken.service().shards(), configured_.shards());
  EXPECT_EQ(taken.service().poison_deaths(), 9u);
  EXPECT_EQ(keeper_.Describe().service().shard_count(), configured_.shards());
}

TEST_F(LiveConfigTest, shouldDoNothingWhenNothingHasChanged) {
  const ConfigTaken taken = Take(configured_);
  EXPECT_EQ(taken.refused_size(), 0);
  EXPECT_EQ(taken.service().ShortDebugString(), configured_.ShortDebugString());
  EXPECT_FALSE(HasEvent("config_taken"));
}

TEST_F(LiveConfigTest, shouldTakeNothingThatComesTooLate) {
  internal::ManagementRequest request;
  internal::TakeConfig& take = *request.mutable_take_config();
  *take.mutable_service() = configured_;
  take.mutable_service()->set_max_listeners(5);
  take.set_distrust_contained_root(true);
  take.set_expires_ns(MonotonicNanoseconds());
  const auto reply = keeper_.Ask(request);
  EXPECT_EQ(reply.status().code(), absl::StatusCode::kDeadlineExceeded) << reply.status();
  EXPECT_FALSE(HasEvent("config_taken"));
  take.set_expires_ns(MonotonicNanoseconds() + 60'000'000'000u);
  EXPECT_EQ(keeper_.Ask(request).status(), absl::OkStatus());
  EXPECT_TRUE(HasEvent("config_taken"));
}

// A driver of which keepers die, and what it hands to the next one.
struct DriverOfKeepers {
  explicit DriverOfKeepers(uint16_t port)
      : config(directory.Config([&](v1::ServiceConfig* service) { SetListener(port, service); })) {
    host->Start();
    driver.ready_once = true;
  }

  static void SetListener(uint16_t port, v1::ServiceConfig* service) {
    service->clear_listeners();
    v1::ListenerConfig* const listener = service->add_listeners();
    listener->set_host(verbs::testing::FabricUnderTest().host);
    listener->set_port(port);
  }
  // The keeper dies instead of giving its next order after so many. Negative: it lives.
  std::unique_ptr<MortalDriverClient> Client(int orders = -1) {
    using Fate = MortalDriverClient::Fate;
    return std::make_unique<MortalDriverClient>(
        driver, [this, orders](const internal::DriverOrder& order) mutable {
          if (orders-- == 0) return Fate::kDies;
          if (order.has_note_service()) {  // as DriverProcess does
            *config.mutable_service() = order.note_service().service();
            config.set_distrust_contained_root(order.note_service().distrust_contained_root());
          }
          return Fate::kLives;
        });
  }
  // Has a keeper take `wanted`, and distrust. Returns false if the keeper died before it had.
  bool Reload(const v1::ServiceConfig& wanted, int orders = -1) {
    internal::KeeperConfig in_use = config;
    internal::TakeConfig take;
    *take.mutable_service() = wanted;
    take.set_distrust_contained_root(true);
    const std::unique_ptr<MortalDriverClient> client = Client(orders);
    EventLog events("kv", [](const v1::Event&) {});
    try {
      Policies policies(in_use.service(), *client);
      const auto taken = LiveConfig(in_use, in_use.service(), *client, policies, events).Take(take);
      EXPECT_EQ(taken.status(), absl::OkStatus());
      EXPECT_TRUE(taken.ok() && taken->refused_size() == 0);
    } catch (const testing::KeeperDeath&) {
      return false;
    }
    return true;
  }
  absl::Status Follow() { return Keeper::Create(config, Client()).status(); }
  std::set<uint32_t> Ports() {
    std::set<uint32_t> ports;
    const internal::Description seen = Client()->DescribeQueues();
    for (const v1::Listener& one : seen.service().listeners()) ports.insert(one.port());
    return ports;
  }
  std::set<uint32_t> ConfiguredPorts() const {
    std::set<uint32_t> ports;
    for (const v1::ListenerConfig& one : config.service().listeners()) ports.insert(one.port());
    return ports;
  }

  const KeeperThread directory;   // without a keeper
  internal::KeeperConfig config;  // of the next keeper
  const std::unique_ptr<driver_process::DriverHost> host =
      driver_process::DriverHost::Open(config, {}).value();
  testing::LastingDriver driver{host->driver(), host->news()};
};

std::pair<uint16_t, uint16_t> TwoFreePorts() {
  RawPeer one, other;
  const uint16_t port = one.Listen();
  return {port, other.Listen()};  // free again at their ends
}

// It has stopped one listener, and has or has not begun the other one.
TEST(KeeperDeathInAReloadTest, shouldLeaveNoListenerOutAndNoneUnknown) {
  int orders = 0;
  for (bool lived = false; !lived; ++orders) {
    SCOPED_TRACE(orders);
    ASSERT_LT(orders, 100);
    const auto [former, next] = TwoFreePorts();
    DriverOfKeepers survivor(former);
    const std::string host = verbs::testing::FabricUnderTest().host;
    ASSERT_EQ(survivor.Client()->Listen({host, former}), absl::OkStatus());
    v1::ServiceConfig wanted = survivor.config.service();
    DriverOfKeepers::SetListener(next, &wanted);
    lived = survivor.Reload(wanted, orders);
    ASSERT_EQ(survivor.Follow(), absl::OkStatus());
    EXPECT_EQ(survivor.Ports(), survivor.ConfiguredPorts());
    // The next reload asks again.
    EXPECT_TRUE(survivor.Reload(wanted));
    EXPECT_EQ(survivor.Ports(), std::set<uint32_t>{next});
    EXPECT_EQ(survivor.ConfiguredPorts(), std::set<uint32_t>{next});
    EXPECT_TRUE(survivor.config.distrust_contained_root());
  }
  EXPECT_GT(orders, 4);
}

TEST(KeeperDeathInAReloadTest, shouldBeFollowedThoughAListenerCannotBeHadAgain) {
  RawPeer other;
  DriverOfKeepers survivor(other.Listen());
  EXPECT_EQ(survivor.Follow(), absl::OkStatus());
  EXPECT_TRUE(survivor.Ports().empty());
}

}  // namespace
}  // namespace baton::keeper
