// An order that two keepers give, one after the other, for one request of a worker is executed
// once.
#include "supervisor/driver/engine/order_executor.h"
#include "lib/channel/carried_status.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <string_view>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/lib/driver/commit_writer.h"
#include "tests/lib/driver/own_memory.h"
#include "tests/supervisor/driver/inline_engine.h"
#include "tests/supervisor/keeper/inline_driver_client.h"

namespace baton::driver_process {
namespace {

using testing::BusyDrivers;
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
  // Two are the same event if a write to one is read from the other.
  static bool AreTheSame(int one, int other) {
    eventfd_t count = 0;
    return eventfd_write(one, 1) == 0 && eventfd_read(other, &count) == 0 && count == 1;
  }
  uint32_t Held() { return driver_client.Account({}).accounts().descriptors(); }

  // The keeper's numbers of the grants that have changed, as they are reported.
  std::vector<uint64_t> Changed() {
    std::vector<uint64_t> calls;
    for (const internal::DriverNews& one : news.Take()) calls.push_back(one.grant_changed().call());
    return calls;
  }

  v1::ServiceConfig config;
  static arena::Shape ShapeWithHeap() {
    arena::Shape shape = driver::testing::TestShape();
    shape.heap_pages = 2;
    return shape;
  }

  arena::Arena arena = arena::Arena::Create(ShapeWithHeap(), "kv").value();
  InlineEngine engine{&arena};
  NewsQueue news;
  keeper::testing::InlineDriverClient driver_client{config, engine, news};
  const FileDescriptor event{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
};

// A worker that ends in order is not killed because something was busy.
TEST_F(OrderExecutorTest, shouldDetachAWorkerThatAsksAgain) {
  BusyDrivers drivers;
  engine.succession().SetDrivers(&drivers);
  engine.succession().AddWorker(0, kWorker, CopyOf(event.get()), {}, Standing::kFirst);
  drivers.looks_left = 2;
  EXPECT_EQ(driver_client.Detach(0, kWorker).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(driver_client.Detach(0, kWorker).code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(engine.dead, IsEmpty());
  EXPECT_EQ(driver_client.Detach(0, kWorker), absl::OkStatus());
  EXPECT_THAT(engine.dead, ::testing::ElementsAre(kWorker));
  engine.succession().SetDrivers(nullptr);
}

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

// The keeper that gave the order may have died, and the next one does not know of it.
TEST_F(OrderExecutorTest, shouldRevokeTheGrantOfAWorkerThatIsGoneBeforeItHasIt) {
  engine.grants_reserved = 3;
  (void)driver_client.Execute(GrantOrder(/*call=*/1, /*number=*/5));
  driver_client.ChangeWorker(0, kWorker, internal::ChangeWorker::PLACE_LEFT);
  engine.registering[0](absl::OkStatus());
  EXPECT_THAT(engine.revoked, ::testing::ElementsAre(3u));
  EXPECT_EQ(driver_client.Account({}).accounts().granted_bytes(), 64u);
  ASSERT_EQ(engine.revoking.size(), 1u);
  engine.revoking[0](absl::OkStatus());
  EXPECT_EQ(driver_client.Account({}).accounts().granted_bytes(), 0u);
  const std::vector<internal::DriverNews> told = news.Take();
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].grant_changed().call(), 1u);
  EXPECT_FALSE(StatusIn(told[0].grant_changed()).ok());
}

// Its next owner may use what it wanted to revoke, and nobody would revoke what it is granted.
TEST_F(OrderExecutorTest, shouldDoNothingForAWorkerThatHasEnded) {
  engine.AddWorker(1, kWorker, CopyOf(event.get()), {}, Standing::kFirst);
  (void)driver_client.Execute(GrantOrder(/*call=*/1, /*number=*/5));
  engine.roster[1].ended = true;
  EXPECT_EQ(StatusIn(driver_client.Execute(GrantOrder(/*call=*/2, /*number=*/6))).code(),
            absl::StatusCode::kAborted);
  EXPECT_EQ(engine.grants_reserved, 1u);
  (void)driver_client.Execute(RevokeOrder(/*call=*/3, /*number=*/7));
  EXPECT_THAT(engine.revoked, IsEmpty());
  const std::vector<internal::DriverNews> told = news.Take();
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(StatusIn(told[0].grant_changed()).code(), absl::StatusCode::kAborted);
  engine.registering[0](absl::OkStatus());
  EXPECT_THAT(engine.revoked, ::testing::ElementsAre(0u));
}

TEST_F(OrderExecutorTest, shouldRegisterARegionOfAHeldDescriptorOnce) {
  const driver::testing::OwnMemory memory(4096);
  const auto held = driver_client.HoldDescriptorFor({kWorker, 1}, /*tag=*/0, memory.fd());
  ASSERT_TRUE(held.ok()) << held.status();
  internal::DriverOrder order = GrantOrder(/*call=*/1, /*number=*/5);
  order.mutable_reserve_grant()->mutable_request()->set_memfd(*held);
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(StatusIn(driver_client.Execute(order)).ok());
  ASSERT_EQ(engine.regions_reserved.size(), 1u);
  EXPECT_EQ(engine.grants_reserved, 0u);
  EXPECT_EQ(engine.regions_reserved[0].length, 64u);
  EXPECT_EQ(engine.regions_reserved[0].descriptor, *held);
  EXPECT_GE(fcntl(engine.regions_reserved[0].memfd->get(), F_GET_SEALS), 0);
  EXPECT_NE(engine.regions_reserved[0].memfd->get(), memory.fd());
  arena.region(1).rkey = 17;
  engine.registering[0](absl::OkStatus());
  const std::vector<internal::DriverNews> told = news.Take();
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].grant_changed().granted().region(), 1u);
  EXPECT_EQ(told[0].grant_changed().granted().rkey(), 17u);
  EXPECT_EQ(driver_client.Account({kWorker}).workers(0).granted_bytes(), 64u);
}

// To close a copy of such a descriptor could wait for ever.
TEST_F(OrderExecutorTest, shouldCopyNoDescriptorThatIsNoMemfd) {
  const FileDescriptor event(eventfd(0, EFD_CLOEXEC));
  const auto held = driver_client.HoldDescriptorFor({kWorker, 1}, /*tag=*/0, event.get());
  ASSERT_TRUE(held.ok()) << held.status();
  internal::DriverOrder order = GrantOrder(/*call=*/1, /*number=*/5);
  order.mutable_reserve_grant()->mutable_request()->set_memfd(*held);
  EXPECT_EQ(StatusIn(driver_client.Execute(order)).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(engine.regions_reserved.empty());
}

TEST_F(OrderExecutorTest, shouldRegisterNothingThatIsNotHeld) {
  internal::DriverOrder order = GrantOrder(/*call=*/1, /*number=*/5);
  order.mutable_reserve_grant()->mutable_request()->set_memfd(4711);
  EXPECT_EQ(StatusIn(driver_client.Execute(order)).code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(engine.regions_reserved.empty());
  EXPECT_EQ(driver_client.Account({kWorker}).workers(0).grants(), 0u);
}

TEST_F(OrderExecutorTest, shouldRevokeOnceAndReportItToTheKeeperThatAsksLast) {
  (void)driver_client.Execute(RevokeOrder(/*call=*/1, /*number=*/5));
  (void)driver_client.Execute(RevokeOrder(/*call=*/2, /*number=*/5));
  EXPECT_EQ(engine.revoked.size(), 1u);
  engine.revoking[0](absl::OkStatus());
  (void)driver_client.Execute(RevokeOrder(/*call=*/3, /*number=*/5));
  EXPECT_THAT(Changed(), ::testing::ElementsAre(2u, 3u));
}

// A worker's number of a grant never names a region.
TEST_F(OrderExecutorTest, shouldRevokeOnlyWhatIsOfTheKindThatWasNamed) {
  uint64_t number = 0;
  const auto revoke = [&](uint32_t grant, uint32_t region) {
    ++number;
    internal::DriverOrder order = RevokeOrder(/*call=*/number, number);
    order.mutable_revoke_grant()->set_grant(grant);
    order.mutable_revoke_grant()->set_region(region);
    (void)driver_client.Execute(order);
  };
  for (const uint32_t none : {arena::kGrants, arena::GrantOfRegion(arena::kRegions), ~0u}) {
    revoke(none, 0);
  }
  for (const uint32_t none : {arena::kRegions + 1, arena::GrantOfRegion(1), ~0u}) revoke(0, none);
  EXPECT_THAT(engine.revoked, IsEmpty());
  const std::vector<internal::DriverNews> told = news.Take();
  EXPECT_EQ(told.size(), 6u);
  for (const internal::DriverNews& one : told) {
    EXPECT_EQ(StatusIn(one.grant_changed()).code(), absl::StatusCode::kNotFound);
  }
  revoke(arena::kGrants - 1, 0);
  revoke(0, arena::kRegions);
  EXPECT_THAT(engine.revoked,
              ::testing::ElementsAre(arena::kGrants - 1, arena::GrantOfRegion(arena::kRegions)));
}

// An order may come late, when the shard has another owner, who uses the memory for something else.
TEST_F(OrderExecutorTest, shouldGrantMemoryOfAHeapToItsOwnerAlone) {
  const uint64_t heap = arena::HeapOffset(arena.shape(), 0);
  uint64_t number = 0;
  const auto grant = [&](uint64_t offset) {
    ++number;
    internal::DriverOrder order = GrantOrder(/*call=*/number, number);
    order.mutable_reserve_grant()->mutable_request()->set_offset(offset);
    return StatusIn(driver_client.Execute(order)).code();
  };
  engine.shard_owner.worker_id = kWorker + 1;
  EXPECT_EQ(grant(heap), absl::StatusCode::kAborted);
  EXPECT_EQ(grant(heap - 1), absl::StatusCode::kAborted);
  EXPECT_EQ(grant(heap - 64), absl::StatusCode::kOk);
  engine.shard_owner.worker_id = kWorker;
  EXPECT_EQ(grant(heap), absl::StatusCode::kOk);
  ASSERT_EQ(engine.registering.size(), 2u);
  (void)news.Take();
  // The owner has changed while the memory was registered.
  engine.shard_owner.worker_id = kWorker + 1;
  engine.registering[1](absl::OkStatus());
  ASSERT_THAT(engine.revoked, ::testing::ElementsAre(1u));
  engine.revoking[0](absl::OkStatus());
  const std::vector<internal::DriverNews> told = news.Take();
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(StatusIn(told[0].grant_changed()).code(), absl::StatusCode::kAborted);
}

TEST_F(OrderExecutorTest, shouldRevokeMemoryOfAHeapForItsOwnerAlone) {
  arena.grant(0).offset = arena::HeapOffset(arena.shape(), 0);
  arena.grant(0).length = 64;
  engine.shard_owner.worker_id = kWorker + 1;
  (void)driver_client.Execute(RevokeOrder(/*call=*/1, /*number=*/1));
  EXPECT_THAT(engine.revoked, IsEmpty());
  const std::vector<internal::DriverNews> told = news.Take();
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(StatusIn(told[0].grant_changed()).code(), absl::StatusCode::kAborted);
  engine.shard_owner.worker_id = kWorker;
  (void)driver_client.Execute(RevokeOrder(/*call=*/2, /*number=*/2));
  EXPECT_THAT(engine.revoked, ::testing::ElementsAre(0u));
}

TEST_F(OrderExecutorTest, shouldHoldADescriptorOnceForARequestThatIsSentAgain) {
  const auto first = driver_client.HoldDescriptorFor({kWorker, 1}, /*tag=*/3, event.get());
  const auto again = driver_client.HoldDescriptorFor({kWorker, 1}, /*tag=*/3, event.get());
  ASSERT_TRUE(first.ok() && again.ok());
  EXPECT_EQ(*again, *first);
  EXPECT_EQ(Held(), 1u);
  EXPECT_NE(driver_client.HoldDescriptorFor({kWorker, 2}, 3, event.get()).value(), *first);
  EXPECT_NE(driver_client.HoldDescriptorFor({kWorker + 1, 2}, 3, event.get()).value(), *first);
  EXPECT_EQ(Held(), 3u);
}

TEST_F(OrderExecutorTest, shouldGiveDuplicatesOfAHeldDescriptorUntilItIsDropped) {
  const uint64_t number = driver_client.HoldDescriptorFor({kWorker, 1}, 0, event.get()).value();
  driver_client.ChangeWorker(0, kWorker, internal::ChangeWorker::PLACE_LEFT);
  for (int i = 0; i < 2; ++i) {
    const auto taken = driver_client.TakeDescriptor(number);
    ASSERT_TRUE(taken.ok()) << taken.status();
    EXPECT_TRUE(AreTheSame(event.get(), taken->get()));
    EXPECT_EQ(fcntl(taken->get(), F_GETFD), FD_CLOEXEC);
  }
  EXPECT_THAT(driver_client.ListDescriptors(0)->numbers(), ::testing::ElementsAre(number));
  for (int i = 0; i < 2; ++i) EXPECT_EQ(driver_client.DropDescriptor(number), absl::OkStatus());
  EXPECT_EQ(driver_client.TakeDescriptor(number).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(driver_client.ListDescriptors(0)->numbers(), IsEmpty());
}

// Answers a drop with one end of a pipe, and notes at the next order whether the keeper has it.
class PipeDriverClient final : public keeper::DriverClient {
 public:
  const arena::Arena& arena() const override { return arena_; }
  std::string_view device_name() const override { return ""; }
  int news_fd() const override { return -1; }
  bool IsClosed(int timeout_ms) const {
    pollfd end = {pipe_.reading.get(), 0, 0};
    return poll(&end, 1, timeout_ms) == 1;
  }
  internal::DriverAnswer Execute(const internal::DriverOrder& order,
                                 std::vector<FileDescriptor> /*descriptors*/ = {},
                                 std::vector<FileDescriptor>* received = nullptr) override {
    if (order.has_drop_descriptor()) {
      received->push_back(std::move(pipe_.writing));
    } else {
      open_at_next_order = !IsClosed(0);
    }
    return internal::DriverAnswer();
  }

  bool open_at_next_order = false;

 protected:
  std::vector<internal::DriverNews> TakeNews() override { return {}; }

 private:
  const arena::Arena arena_ = arena::Arena::Create(driver::testing::TestShape(), "kv").value();
  Pipe pipe_ = MakePipe().value();
};

// The driver may be slow to close its own.
TEST_F(OrderExecutorTest, shouldLeaveTheLastCloseOfADroppedDescriptorToTheKeeper) {
  PipeDriverClient client;
  EXPECT_EQ(client.DropDescriptor(1), absl::OkStatus());
  EXPECT_TRUE(client.open_at_next_order);
  EXPECT_TRUE(client.IsClosed(-1));
}

// The driver of a native service has one thread, and the last close may take long.
TEST_F(OrderExecutorTest, shouldLeaveTheCloseOfADroppedDescriptorToTheKeeper) {
  const uint64_t number = driver_client.HoldDescriptorFor({kWorker, 1}, 0, event.get()).value();
  internal::DriverOrder order;
  order.mutable_drop_descriptor()->set_number(number);
  std::vector<FileDescriptor> dropped;
  EXPECT_TRUE(StatusIn(driver_client.Execute(order, {}, &dropped)).ok());
  ASSERT_EQ(dropped.size(), 1u);
  EXPECT_TRUE(AreTheSame(event.get(), dropped[0].get()));
}

TEST_F(OrderExecutorTest, shouldSayThatADescriptorHasNotArrived) {
  internal::DriverOrder order;
  order.mutable_hold_descriptor()->set_worker_id(kWorker);
  const absl::Status lost = StatusIn(driver_client.Execute(order));
  EXPECT_EQ(lost.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(lost.message().find("RLIMIT_NOFILE"), std::string::npos);
}

TEST_F(OrderExecutorTest, shouldHoldNoMoreDescriptorsThanThePolicyAllows) {
  v1::Policy policy;
  policy.mutable_worker()->set_descriptors(1);
  policy.mutable_service()->set_descriptors(2);
  driver_client.PutPolicyInForce(policy);
  const auto hold = [&](uint64_t worker) {
    return driver_client.HoldDescriptorFor({worker, 0}, 0, event.get()).status();
  };
  EXPECT_EQ(hold(kWorker), absl::OkStatus());
  EXPECT_NE(hold(kWorker).message().find("policy.worker.descriptors"), std::string::npos);
  EXPECT_EQ(hold(kWorker + 1), absl::OkStatus());
  EXPECT_NE(hold(kWorker + 2).message().find("policy.service.descriptors"), std::string::npos);
  // The service keeps the descriptors of a worker that is gone.
  driver_client.ChangeWorker(0, kWorker, internal::ChangeWorker::PLACE_LEFT);
  EXPECT_EQ(driver_client.Account({kWorker}).workers(0).descriptors(), 0u);
  EXPECT_EQ(Held(), 2u);
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
