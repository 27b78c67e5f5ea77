#include "supervisor/keeper/policy/limit_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <boost/asio/io_context.hpp>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/base/check.h"
#include "lib/base/clock.h"
#include "lib/driver/device_needs.h"
#include "tests/lib/driver/commit_writer.h"
#include "tests/supervisor/driver/inline_engine.h"
#include "tests/supervisor/keeper/inline_driver_client.h"

namespace baton::keeper {
namespace {

using driver_process::testing::InlineEngine;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr char kGroup[] = "/sys/fs/cgroup/system.slice/batond.service/";

// The sessions of a native service, which have no thread; no worker attaches.
class LimitWatchTest : public ::testing::Test {
 protected:
  static internal::KeeperConfig Config() {
    internal::KeeperConfig config;
    v1::ServiceConfig& service = *config.mutable_service();
    service.set_name("kv");
    service.mutable_device()->mutable_rdma();
    service.set_max_connections(100);
    service.set_max_workers(4);
    service.set_heartbeat_ms(1000);
    service.set_hang_timeout_ms(60'000);
    return config;
  }
  static arena::Shape Shape() {
    arena::Shape shape = driver::testing::TestShape();
    shape.pooled_queue_pairs = 2;
    return shape;
  }
  void Set(const v1::Policy& policy) {
    ASSERT_TRUE(policies.Replace(policy, /*validate_only=*/false).ok());
  }
  std::vector<std::string> Warnings() {
    const v1::Accounts accounts = watch.Look();
    return {accounts.warnings().begin(), accounts.warnings().end()};
  }

  boost::asio::io_context loop{1};
  const internal::KeeperConfig config = Config();
  std::vector<std::string> told;
  EventLog events{"kv", [this](const v1::Event& event) {
                    told.push_back(event.kind() + " " + event.message());
                  }};
  arena::Arena arena = arena::Arena::Create(Shape(), "kv").value();
  driver_process::testing::InlineEngine engine{&arena};
  driver_process::NewsQueue news;
  testing::InlineDriverClient driver{config.service(), engine, news};
  Policies policies{config.service(), driver};
  WorkerSessions sessions{CommonParts{loop, config, driver, policies, events}};
  std::map<std::string, std::string> files;
  LimitWatch watch{CommonParts{loop, config, driver, policies, events}, sessions,
                   [this](const std::string& path) -> std::optional<std::string> {
                     const auto found = files.find(path);
                     if (found == files.end()) return std::nullopt;
                     return found->second;
                   }};
};

TEST_F(LimitWatchTest, shouldWarnOfALimitOfThePolicyAndTellOnceWhenItComesNear) {
  v1::Policy policy;
  policy.mutable_service()->set_connections(100);
  Set(policy);
  engine.connections = 89;
  EXPECT_THAT(Warnings(), IsEmpty());
  engine.connections = 90;
  EXPECT_THAT(Warnings(), ElementsAre("policy.service.connections: 90 of 100 in use"));
  engine.connections = 95;
  EXPECT_THAT(Warnings(), ElementsAre("policy.service.connections: 95 of 100 in use"));
  engine.connections = 80;  // near enough for it to be the same when it comes back
  EXPECT_THAT(Warnings(), IsEmpty());
  engine.connections = 99;
  EXPECT_EQ(Warnings().size(), 1u);
  EXPECT_THAT(told, ElementsAre("limit_near policy.service.connections: 90 of 100 in use"));
  engine.connections = 79;
  EXPECT_THAT(Warnings(), IsEmpty());
  engine.connections = 91;
  EXPECT_EQ(Warnings().size(), 1u);
  EXPECT_EQ(told.size(), 2u);
}

TEST_F(LimitWatchTest, shouldWarnOfRegisteredMemory) {
  const uint64_t bytes = driver::NeedsOf(arena.shape()).registered_bytes;
  v1::Policy policy;
  policy.mutable_service()->set_registered_bytes(bytes + 4096);
  Set(policy);
  EXPECT_THAT(Warnings(), ElementsAre(absl::StrCat("policy.service.registered_bytes: ", bytes,
                                                   " of ", bytes + 4096, " in use")));
  policy.mutable_service()->set_registered_bytes(2 * bytes);
  Set(policy);
  EXPECT_THAT(Warnings(), IsEmpty());
}

// What is there from the start, and never becomes more.
TEST_F(LimitWatchTest, shouldNotWarnOfAQuotaThatIsAsMuchAsAServiceIsMadeWith) {
  v1::Policy policy;
  policy.mutable_service()->set_queue_pairs(8);
  policy.mutable_service()->set_completion_queues(4);
  Set(policy);
  engine.counts.queue_pairs = 8;
  engine.counts.completion_queues = 4;
  EXPECT_THAT(Warnings(), IsEmpty());
}

// A caller may look a hundred times a second, and does not keep the engine from its work.
TEST_F(LimitWatchTest, shouldCountTheDevicesObjectsAnewOnlyWhenThereMayBeOthers) {
  engine.connections = 7;
  engine.counts.queue_pairs = 7;
  EXPECT_EQ(watch.Look().queue_pairs(), 7u);
  const uint64_t began_ns = MonotonicNanoseconds();
  int looks = 0;
  for (; looks < 1000 && MonotonicNanoseconds() - began_ns < 500'000'000; ++looks) watch.Look();
  EXPECT_LE(engine.object_counts, 2u) << looks;
  engine.connections = 8;
  engine.counts.queue_pairs = 8;
  EXPECT_EQ(watch.Look().queue_pairs(), 8u);
}

TEST_F(LimitWatchTest, shouldWarnOfTheDevicesLimitsOfItsControlGroupAndThoseAbove) {
  files["/proc/self/cgroup"] = "0::/system.slice/batond.service";
  engine.set_device_name("rxe0");
  files[std::string(kGroup) + "rdma.max"] = "rxe0 hca_handle=max hca_object=100";
  files[std::string(kGroup) + "rdma.current"] = "rxe0 hca_handle=1 hca_object=89";
  files["/sys/fs/cgroup/system.slice/rdma.max"] = "rxe1 hca_object=1\nrxe0 hca_handle=10";
  files["/sys/fs/cgroup/system.slice/rdma.current"] = "rxe1 hca_object=1\nrxe0 hca_handle=9";
  const std::string above =
      "rdma.max of control group /system.slice: 9 of 10 hca_handle of rxe0 in use";
  EXPECT_THAT(Warnings(), ElementsAre(above));
  files[std::string(kGroup) + "rdma.current"] = "rxe0 hca_handle=1 hca_object=90";
  const std::string own =
      "rdma.max of control group /system.slice/batond.service: 90 of 100 hca_object of rxe0 in use";
  EXPECT_THAT(Warnings(), ElementsAre(own, above));
  EXPECT_THAT(told, ElementsAre("limit_near " + above, "limit_near " + own));
}

TEST_F(LimitWatchTest, shouldMindNoControlGroupThatLimitsNothing) {
  files["/proc/self/cgroup"] = "0::/system.slice/batond.service";
  engine.set_device_name("rxe0");
  files[std::string(kGroup) + "rdma.max"] = "rxe0 hca_handle=max hca_object=max";
  files[std::string(kGroup) + "rdma.current"] = "rxe0 hca_handle=9 hca_object=9";
  EXPECT_THAT(Warnings(), IsEmpty());
  files[std::string(kGroup) + "rdma.max"] = "garbage";
  EXPECT_THAT(Warnings(), IsEmpty());
}

TEST_F(LimitWatchTest, shouldTellOnceThatStandbysAreMissing) {
  v1::Policy policy;
  policy.set_hot_standbys(1);
  Set(policy);
  const std::string missing = "policy.hot_standbys: 0 of 1 workers are ready and own no shard";
  EXPECT_THAT(Warnings(), ElementsAre(missing));
  EXPECT_THAT(Warnings(), ElementsAre(missing));
  EXPECT_THAT(told, ElementsAre("standbys_missing " + missing));
  Set({});
  EXPECT_THAT(Warnings(), IsEmpty());
}

}  // namespace
}  // namespace baton::keeper
