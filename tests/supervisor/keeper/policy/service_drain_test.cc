// A drained service, as its peers, its workers and its next keeper meet it.
#include "supervisor/keeper/policy/service_drain.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lib/base/clock.h"
#include "tests/harness/stopped_clock.h"
#include "tests/lib/driver/raw_peer.h"
#include "tests/lib/verbs/fabric.h"
#include "tests/supervisor/keeper/keeper_thread.h"

namespace baton::keeper {
namespace {

using driver::testing::RawPeer;
using ::testing::HasSubstr;
using testing::KeeperThread;
using testing::RawClient;

class ServiceDrainTest : public ::testing::Test {
 protected:
  void Start() {
    ASSERT_EQ(keeper_.Start([this](v1::ServiceConfig* service) {
      service->add_listeners()->set_host(fabric_.host);
    }),
              absl::OkStatus());
    port_ = static_cast<uint16_t>(keeper_.Describe().service().listeners(0).port());
  }
  void StartWorker() {
    worker_ = std::make_unique<RawClient>(keeper_.socket());
    ASSERT_EQ(worker_->Attach(), absl::OkStatus());
    internal::WorkerRequest ready;
    ready.mutable_set_ready();
    ASSERT_TRUE(worker_->Ask(ready).ok());
  }

  // Adds a peer whose request waits for an answer. The worker gives none.
  void AddPeer() {
    const uint32_t before = Connections();
    peers_.push_back(std::make_unique<RawPeer>());
    peers_.back()->Connect(port_);
    ASSERT_TRUE(Pump([&] { return Connections() == before + 1; }));
  }
  bool Pump(const std::function<bool()>& done) {
    return driver::testing::Pump(
        [&] {
          for (auto& peer : peers_) peer->Turn();
        },
        done);
  }

  uint32_t Connections() { return keeper_.Describe().service().connection_count(); }
  v1::Service Service() { return keeper_.Describe().service(); }

  absl::StatusOr<v1::Drain> Drain(uint32_t deadline_ms = 0, bool disconnect = false) {
    internal::ManagementRequest request;
    request.mutable_drain_service()->set_deadline_ms(deadline_ms);
    request.mutable_drain_service()->set_disconnect(disconnect);
    const auto reply = keeper_.Ask(request);
    if (!reply.ok()) return reply.status();
    return reply->drain();
  }
  absl::Status EndDrain() {
    internal::ManagementRequest request;
    request.mutable_end_drain();
    return keeper_.Ask(request).status();
  }
  void ExpectRefused() {
    RawPeer late;
    late.Connect(port_);
    EXPECT_TRUE(driver::testing::Pump([&] { late.Turn(); }, [&] { return late.rejected; }));
  }

  const verbs::testing::Fabric fabric_ = verbs::testing::FabricUnderTest();
  KeeperThread keeper_;
  std::unique_ptr<RawClient> worker_;
  std::vector<std::unique_ptr<RawPeer>> peers_;
  uint16_t port_ = 0;
};

TEST_F(ServiceDrainTest, shouldRefuseNewConnectionsAndLeaveThoseThereAre) {
  Start();
  StartWorker();
  AddPeer();
  const auto drain = Drain();
  ASSERT_TRUE(drain.ok()) << drain.status();
  EXPECT_EQ(drain->connections_left(), 1u);
  ExpectRefused();
  ExpectRefused();
  EXPECT_EQ(Service().drain().refused(), 2u);
  EXPECT_EQ(Connections(), 1u);
  EXPECT_FALSE(peers_[0]->rejected);
  // Nor may workers connect.
  internal::WorkerRequest connect;
  connect.mutable_connect()->set_host(fabric_.host);
  connect.mutable_connect()->set_port(port_);
  const absl::Status refused = worker_->Ask(connect).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("baton drain --end kv"));
}

TEST_F(ServiceDrainTest, shouldTakeConnectionsAgainWhenItEnds) {
  Start();
  EXPECT_EQ(EndDrain().code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(Drain().ok());
  ExpectRefused();
  ASSERT_EQ(EndDrain(), absl::OkStatus());
  EXPECT_FALSE(Service().has_drain());
  AddPeer();
}

TEST_F(ServiceDrainTest, shouldDisconnectAtTheDeadlineWhenAsked) {
  Start();
  StartWorker();
  AddPeer();
  AddPeer();
  ASSERT_TRUE(Drain(/*deadline_ms=*/1, /*disconnect=*/true).ok());
  ASSERT_TRUE(Pump([&] { return peers_[0]->rejected && peers_[1]->rejected; }));
  EXPECT_EQ(Service().drain().disconnected(), 2u);
}

TEST_F(ServiceDrainTest, shouldTellAndDisconnectNobodyAtTheDeadlineOtherwise) {
  Start();
  StartWorker();
  AddPeer();
  ASSERT_TRUE(Drain(/*deadline_ms=*/1).ok());
  ASSERT_TRUE(Pump([&] {
    const auto events = keeper_.Events();
    return std::any_of(events.begin(), events.end(),
                       [](const v1::Event& event) { return event.kind() == "drain_overdue"; });
  }));
  EXPECT_EQ(Connections(), 1u);
  EXPECT_FALSE(peers_[0]->rejected);
  EXPECT_EQ(Service().drain().disconnected(), 0u);
}

TEST_F(ServiceDrainTest, shouldChangeItsDeadlineAndKeepItsBegin) {
  Start();
  const auto first = Drain();
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(first->deadline_unix_micros(), 0);
  const auto second = Drain(/*deadline_ms=*/600'000);
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(second->started_unix_micros(), first->started_unix_micros());
  EXPECT_GT(second->deadline_unix_micros(), first->started_unix_micros());
}

TEST_F(ServiceDrainTest, shouldNameTheFieldOfADisconnectWithoutADeadline) {
  Start();
  const absl::Status status = Drain(0, /*disconnect=*/true).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("disconnect:"));
  EXPECT_FALSE(Service().has_drain());
}

TEST_F(ServiceDrainTest, shouldGoOnInTheNextKeeper) {
  Start();
  const auto drain = Drain();
  ASSERT_TRUE(drain.ok());
  keeper_.Stop();
  Start();
  EXPECT_EQ(Service().drain().started_unix_micros(), drain->started_unix_micros());
  ExpectRefused();
  ASSERT_EQ(EndDrain(), absl::OkStatus());
  keeper_.Stop();
  Start();
  EXPECT_FALSE(Service().has_drain());
  AddPeer();
}

// It was set back before the deadline: by it, the deadline is an hour away.
TEST_F(ServiceDrainTest, shouldKeepItsDeadlineWhenTheClockIsSet) {
  Start();
  StartWorker();
  AddPeer();
  ASSERT_TRUE(Drain(/*deadline_ms=*/2000, /*disconnect=*/true).ok());
  const harness::SetClock behind(-3600);
  ASSERT_TRUE(Pump([&] { return peers_[0]->rejected; }));
}

TEST_F(ServiceDrainTest, shouldKeepItsDeadlineInTheNextKeeperWhenTheClockIsSet) {
  Start();
  const auto drain = Drain(/*deadline_ms=*/600'000);
  ASSERT_TRUE(drain.ok());
  keeper_.Stop();
  const harness::SetClock ahead(3600);
  Start();
  const v1::Drain next = Service().drain();
  EXPECT_EQ(next.started_unix_micros(), drain->started_unix_micros());
  EXPECT_GT(next.deadline_unix_micros(), drain->deadline_unix_micros() + 3'590'000'000);
  EXPECT_LT(next.deadline_unix_micros(), drain->deadline_unix_micros() + 3'610'000'000);
}

// After a start of the machine there is nothing else to go by, nor in the record of another
// release.
TEST_F(ServiceDrainTest, shouldGoByTheClockOfTheDayAfterAStartOfTheMachine) {
  const int64_t deadline = UnixMicroseconds() + 600'000'000;
  for (const char* boot : {"boot_id: \"another\" deadline_monotonic_ns: 1", ""}) {
    std::ofstream(keeper_.directory().File("kv.drain"))
        << "started_unix_micros: 7 deadline_unix_micros: " << deadline << " " << boot;
    Start();
    const v1::Drain drain = Service().drain();
    EXPECT_EQ(drain.started_unix_micros(), 7);
    EXPECT_NEAR(static_cast<double>(drain.deadline_unix_micros()), static_cast<double>(deadline),
                10e6);
    keeper_.Stop();
  }
}

// Somebody wanted it.
TEST_F(ServiceDrainTest, shouldDrainWhenWhatTellsOfItCannotBeRead) {
  std::ofstream(keeper_.directory().File("kv.drain")) << "half of";
  Start();
  EXPECT_TRUE(Service().has_drain());
  ExpectRefused();
}

// `readers` has one byte for each keeper that has ended while it read the record.
TEST_F(ServiceDrainTest, shouldSetAsideARecordThatThreeKeepersHaveDiedOf) {
  const std::string record = keeper_.directory().File("kv.drain");
  const std::string readers = record + ".readers";
  std::ofstream(record) << "started_unix_micros: 7";
  std::ofstream(readers) << "rr";
  Start();
  EXPECT_TRUE(Service().has_drain());
  EXPECT_FALSE(std::ifstream(readers).good());
  keeper_.Stop();
  std::ofstream(readers) << "rrr";
  Start();
  EXPECT_FALSE(Service().has_drain());
  EXPECT_FALSE(std::ifstream(record).good());
  EXPECT_FALSE(std::ifstream(readers).good());
  EXPECT_TRUE(std::ifstream(record + ".set_aside").good());
}

}  // namespace
}  // namespace baton::keeper
