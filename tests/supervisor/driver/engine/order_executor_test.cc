// An order that two keepers give, one after the other, for one request of a worker is executed
// once.
#include "supervisor/driver/engine/order_executor.h"
#include "lib/channel/carried_status.h"

#include <sys/socket.h>

#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/lib/driver/commit_writer.h"
#include "tests/supervisor/driver/inline_engine.h"
#include "tests/supervisor/keeper/inline_driver_client.h"

namespace baton::driver_process {
namespace {

using testing::InlineEngine;
using ::testing::IsEmpty;

class OrderExecutorTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kWorker = 7;

  static internal::DriverOrder GrantOrder(uint64_t call, uint64_t number) {
    internal::DriverOrder order;
    order.mutable_reserve_grant()->set_call(call);
    order.mutable_reserve_grant()->set_worker_id(kWorker);
    order.mutable_reserve_grant()->set_number(number);
    order.mutable_reserve_grant()->mutable_request()->set_length(64);
    return order;
  }
  static internal::DriverOrder RevokeOrder(uint64_t call, uint64_t number) {
    internal::DriverOrder order;
    order.mutable_revoke_grant()->set_call(call);
    order.mutable_revoke_grant()->set_worker_id(kWorker);
    order.mutable_revoke_grant()->set_number(number);
    return order;
  }
  // The keeper's numbers of the grants that have changed, as they are reported.
  std::vector<uint64_t> Changed() {
    std::vector<uint64_t> calls;
    for (const internal::DriverNews& one : news.Take()) calls.push_back(one.grant_changed().call());
    return calls;
  }

  v1::ServiceConfig config;
  arena::Arena arena = arena::Arena::Create(driver::testing::TestShape(), "kv").value();
  InlineEngine engine{&arena};
  NewsQueue news;
  keeper::testing::InlineDriverClient driver_client{config, engine, news};
};

TEST_F(OrderExecutorTest, shouldListenOnceForARequestThatIsSentAgain) {
  engine.listens = true;
  const verbs::Address any = {"127.0.0.1", 0};
  const auto first = driver_client.ListenFor({kWorker, 1}, any, 4);
  const auto again = driver_client.ListenFor({kWorker, 1}, any, 4);
  ASSERT_TRUE(first.ok() && again.ok());
  EXPECT_EQ(again->port(), first->port());
  EXPECT_EQ(engine.listen_calls, 1u);
  EXPECT_NE(driver_client.ListenFor({kWorker, 2}, any, 4)->port(), first->port());
  EXPECT_NE(driver_client.ListenFor({kWorker + 1, 2}, any, 4)->port(), first->port());
  // Without a number nothing is known of it.
  (void)driver_client.ListenFor({kWorker, 0}, any, 4);
  (void)driver_client.ListenFor({kWorker, 0}, any, 4);
  EXPECT_EQ(engine.listen_calls, 5u);
}

TEST_F(OrderExecutorTest, shouldAnswerARefusedRequestTheSameWhenItIsSentAgain) {
  const auto first = driver_client.ListenFor({kWorker, 1}, {"127.0.0.1", 0}, 4);
  engine.listens = true;
  EXPECT_EQ(driver_client.ListenFor({kWorker, 1}, {"127.0.0.1", 0}, 4).status(), first.status());
  EXPECT_FALSE(first.ok());
}

TEST_F(OrderExecutorTest, shouldForgetTheRequestsOfAWorkerThatIsGone) {
  engine.listens = true;
  (void)driver_client.ListenFor({kWorker, 1}, {"127.0.0.1", 0}, 4);
  driver_client.ChangeWorker(0, kWorker, internal::ChangeWorker::PLACE_LEFT);
  (void)driver_client.ListenFor({kWorker, 1}, {"127.0.0.1", 0}, 4);
  EXPECT_EQ(engine.listen_calls, 2u);
}

TEST_F(OrderExecutorTest, shouldNotCountAListenerOfAWorkerThatIsStopped) {
  engine.listens = true;
  const verbs::Address address = {"127.0.0.1", 7000};
  const auto listeners = [&] { return driver_client.Account({kWorker}).workers(0).listeners(); };
  ASSERT_TRUE(driver_client.ListenFor({kWorker, 1}, address, 4).ok());
  EXPECT_EQ(listeners(), 1u);
  driver_client.StopListening(address);
  EXPECT_EQ(listeners(), 0u);
}

TEST_F(OrderExecutorTest, shouldGrantOnceAndReportItToTheKeeperThatAsksLast) {
  (void)driver_client.Execute(GrantOrder(/*call=*/1, /*number=*/5));
  (void)driver_client.Execute(GrantOrder(/*call=*/2, /*number=*/5));
  EXPECT_EQ(engine.grants_reserved, 1u);
  EXPECT_THAT(Changed(), IsEmpty());
  engine.registering[0](absl::OkStatus());
  EXPECT_THAT(Changed(), ::testing::ElementsAre(2u));
  // It was granted when the next keeper asks.
  (void)driver_client.Execute(GrantOrder(/*call=*/3, /*number=*/5));
  EXPECT_EQ(engine.grants_reserved, 1u);
  EXPECT_THAT(Changed(), ::testing::ElementsAre(3u));
  (void)driver_client.Execute(GrantOrder(/*call=*/4, /*number=*/6));
  EXPECT_EQ(engine.grants_reserved, 2u);
}

TEST_F(OrderExecutorTest, shouldRevokeOnceAndReportItToTheKeeperThatAsksLast) {
  (void)driver_client.Execute(RevokeOrder(/*call=*/1, /*number=*/5));
  (void)driver_client.Execute(RevokeOrder(/*call=*/2, /*number=*/5));
  EXPECT_EQ(engine.revoked.size(), 1u);
  engine.revoking[0](absl::OkStatus());
  (void)driver_client.Execute(RevokeOrder(/*call=*/3, /*number=*/5));
  EXPECT_THAT(Changed(), ::testing::ElementsAre(2u, 3u));
}

TEST_F(OrderExecutorTest, shouldNotCancelAMoveThatHasEnded) {
  absl::Status ended;
  const uint64_t move =
      driver_client.HandOver(0, 0, [&](const absl::Status& status, double) { ended = status; });
  driver_client.DeliverNews();
  EXPECT_FALSE(ended.ok());  // this engine has no queues
  driver_client.CancelHandOver(move, 0, "too late");
  EXPECT_EQ(engine.cancelled, 0u);
}

TEST_F(OrderExecutorTest, shouldRefuseAWorkerWithoutASlotOrADescriptor) {
  internal::DriverOrder order;
  order.mutable_add_worker()->set_slot(arena.shape().workers);
  std::vector<FileDescriptor> one;
  one.emplace_back(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(StatusIn(driver_client.Execute(order, std::move(one))).code(),
            absl::StatusCode::kInvalidArgument);
  order.mutable_add_worker()->set_slot(0);
  const absl::Status lost = StatusIn(driver_client.Execute(order));
  EXPECT_EQ(lost.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(lost.message().find("RLIMIT_NOFILE"), std::string::npos);
}

// Nobody else would: its time limit was the dead keeper's.
TEST_F(OrderExecutorTest, shouldGiveUpTheHandoversOfADeadKeeper) {
  engine.hands_over = true;
  std::vector<absl::StatusCode> ends;
  for (const uint32_t shard : {0, 0}) {
    driver_client.HandOver(
        shard, 0, [&](const absl::Status& status, double) { ends.push_back(status.code()); });
    EXPECT_EQ(engine.handing_over.size(), 1u);
    driver_client.CancelHandovers();
    EXPECT_TRUE(engine.handing_over.empty());
  }
  driver_client.CancelHandovers();
  EXPECT_EQ(engine.cancelled, 2u);
  driver_client.DeliverNews();
  EXPECT_THAT(ends, ::testing::Each(absl::StatusCode::kAborted));
  EXPECT_EQ(ends.size(), 2u);
}

// The keeper may give orders until it has read that the device is lost.
TEST_F(OrderExecutorTest, shouldExecuteNothingOnAnEngineThatHasStopped) {
  engine.listens = true;
  engine.has_stopped = true;
  EXPECT_EQ(driver_client.ListenFor({kWorker, 1}, {"127.0.0.1", 0}, 4).status().code(),
            absl::StatusCode::kUnavailable);
  EXPECT_EQ(driver_client.CheckStoredState({}).code(), absl::StatusCode::kUnavailable);
  internal::DriverOrder moves;
  moves.mutable_list_shard_moves();
  EXPECT_TRUE(StatusIn(driver_client.Execute(moves)).ok());
}

}  // namespace
}  // namespace baton::driver_process
