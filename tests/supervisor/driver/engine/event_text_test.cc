#include <sys/socket.h>

#include <array>
#include <atomic>
#include <deque>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/arena/atomic_access.h"
#include "lib/base/clock.h"
#include "lib/verbs/soft/soft_device.h"
#include "supervisor/driver/engine/engine.h"
#include "supervisor/driver/engine/event_text.h"
#include "tests/harness/wait_until.h"
#include "tests/lib/driver/commit_writer.h"
#include "tests/lib/driver/raw_peer.h"
#include "tests/lib/verbs/forwarding_device.h"

namespace baton::driver_process {
namespace {

constexpr uint64_t kSecondNs = 1'000'000'000;

TEST(RefusalsTest, shouldTellTheSameOnceASecondAndCountTheRest) {
  Refusals refusals;
  EXPECT_EQ(refusals.Tell("no slot", 5 * kSecondNs), "no slot");
  for (int i = 0; i < 3; ++i) EXPECT_EQ(refusals.Tell("no slot", 5 * kSecondNs + 1), std::nullopt);
  EXPECT_EQ(refusals.Tell("no slot", 6 * kSecondNs), "no slot (3 more were refused like this)");
}

TEST(RefusalsTest, shouldTellLessOftenTheLongerItGoesOn) {
  Refusals refusals;
  int told = 0;
  constexpr int kSeconds = 3600;
  for (int i = 0; i < kSeconds * 10; ++i) {
    told += refusals.Tell("drained", kSecondNs + i * (kSecondNs / 10)).has_value();
  }
  EXPECT_GT(told, kSeconds / 60);
  EXPECT_LT(told, kSeconds / 60 + 10);
}

TEST(RefusalsTest, shouldTellAtOnceAfterARest) {
  Refusals refusals;
  for (int i = 0; i < 100; ++i) (void)refusals.Tell("drained", kSecondNs + i * kSecondNs / 2);
  EXPECT_TRUE(refusals.Tell("drained", 200 * kSecondNs).has_value());
  EXPECT_EQ(refusals.Tell("drained", 300 * kSecondNs), "drained");  // nothing was left untold
  EXPECT_EQ(refusals.Tell("drained", 300 * kSecondNs + 1), std::nullopt);
  EXPECT_EQ(refusals.Tell("drained", 301 * kSecondNs), "drained (1 more were refused like this)");
}

TEST(RefusalsTest, shouldTellAnotherReasonAtOnceAndKnowBoth) {
  Refusals refusals;
  EXPECT_EQ(refusals.Tell("no slot", 5 * kSecondNs), "no slot");
  EXPECT_EQ(refusals.Tell("broken", 5 * kSecondNs), "broken");
  EXPECT_EQ(refusals.Tell("no slot", 5 * kSecondNs), std::nullopt);
  EXPECT_EQ(refusals.Tell("broken", 5 * kSecondNs), std::nullopt);
}

TEST(RefusalsTest, shouldForgetThatWhichWasToldLongestAgo) {
  Refusals refusals;
  for (uint64_t i = 0; i < 9; ++i) {
    EXPECT_TRUE(refusals.Tell(std::to_string(i), kSecondNs + i).has_value());
  }
  EXPECT_TRUE(refusals.Tell("0", kSecondNs + 9).has_value());
  EXPECT_EQ(refusals.Tell("8", kSecondNs + 9), std::nullopt);
}

using driver::testing::Pump;
using driver::testing::RawPeer;
using driver::testing::TestShape;
using ::testing::AllOf;
using ::testing::HasSubstr;
using verbs::DeviceEvent;
using verbs::DeviceEventType;

// A soft device that tells what its test says, and completes nothing any more when that says so.
class TellingDevice final : public verbs::testing::ForwardingDevice {
 public:
  TellingDevice() : ForwardingDevice(verbs::soft::CreateSoftDevice({}).value()) {}
  void Tell(DeviceEventType type, uint32_t qp_number = 0) {
    const std::lock_guard<std::mutex> lock(mutex_);
    DeviceEvent event;
    event.type = type;
    event.port = 1;
    event.qp_number = qp_number;
    event.text = "says the test";
    events_.push_back(event);
  }
  std::atomic<bool> mute{false};    // its completion queues
  std::atomic<bool> broken{false};  // the first of them

  std::string_view name() const override { return "telling"; }
  absl::StatusOr<std::unique_ptr<verbs::CompletionQueue>> CreateCompletionQueue(
      uint32_t entries) override {
    auto queue = std::make_unique<Queue>();
    queue->device = this;
    queue->first = std::exchange(first_, false);
    queue->inner = inner().CreateCompletionQueue(entries).value();
    return queue;
  }
  absl::StatusOr<std::unique_ptr<verbs::QueuePair>> CreateQueuePair(
      const verbs::QueuePairOptions& options) override {
    verbs::QueuePairOptions real = options;
    real.send_queue = static_cast<Queue*>(options.send_queue)->inner.get();
    real.receive_queue = static_cast<Queue*>(options.receive_queue)->inner.get();
    return inner().CreateQueuePair(real);
  }
  bool NextDeviceEvent(DeviceEvent* event) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (events_.empty()) return false;
    *event = events_.front();
    events_.pop_front();
    return true;
  }

 private:
  struct Queue final : verbs::CompletionQueue {
    TellingDevice* device = nullptr;
    bool first = false;
    std::unique_ptr<verbs::CompletionQueue> inner;
    absl::StatusOr<int> Poll(absl::Span<verbs::Completion> completions) override {
      if (device->broken && first) return absl::DataLossError("overrun");
      return device->mute ? 0 : inner->Poll(completions);
    }
    absl::Status RequestNotification() override { return inner->RequestNotification(); }
  };

  bool first_ = true;
  std::mutex mutex_;
  std::deque<DeviceEvent> events_;  // guarded by mutex_
};

struct Told {
  std::string kind;
  std::string message;
  int connection;
};

class TextListener : public EngineListener {
 public:
  void OnEvent(std::string_view kind, const std::string& message, uint64_t, int,
               int connection) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    told_.push_back({std::string(kind), message, connection});
  }
  void OnFenced(uint64_t) override {}
  void OnDeviceLost(const absl::Status& why) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    lost_ = why;
  }
  absl::Status lost() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return lost_;
  }
  std::optional<Told> Find(std::string_view kind) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const Told& told : told_) {
      if (told.kind == kind) return told;
    }
    return std::nullopt;
  }

 private:
  std::mutex mutex_;
  std::vector<Told> told_;  // guarded by mutex_
  absl::Status lost_;       // guarded by mutex_
};

// What the engine does when its device tells of trouble. The service has two shards, with one
// connection in each.
class DeviceEvents : public ::testing::Test {
 protected:
  void SetUp() override {
    EngineOptions options;
    options.nanoseconds = [this] { return MonotonicNanoseconds() + passed_; };
    engine = Engine::Create(&arena, &device, &listener, options).value();
    engine->Start();
    for (uint32_t shard = 0; shard < 2; ++shard) {
      const verbs::Address address = {"127.0.0.1", peers[shard].Listen()};
      engine->Run([&] { connections[shard] = engine->Connect(shard, address, "", 0).value(); });
      ASSERT_TRUE(Until([&] {
        return peers[shard].established && StateOf(shard) == arena::ConnectionState::kEstablished;
      }));
    }
  }
  void TearDown() override { engine->Stop(); }

  bool Until(const std::function<bool()>& done) {
    return Pump(
        [this] {
          for (RawPeer& peer : peers) peer.Turn();
        },
        done);
  }
  void Tell(DeviceEventType type, uint32_t qp_number = 0) {
    device.Tell(type, qp_number);
    engine->Post([] {});  // so that it looks
  }
  arena::ConnectionState StateOf(uint32_t shard) {
    return arena::ConnectionState(arena::LoadAcquire(arena.connection(connections[shard]).state));
  }
  // The last completion of the shard.
  const arena::CompletionEntry& LastOf(uint32_t shard) {
    const uint64_t tail = arena::LoadAcquire(arena.shard(shard).completion_tail);
    return arena.completion(shard, tail - 1);
  }
  void ExpectEnded(uint32_t shard, verbs::CompletionStatus status) {
    EXPECT_EQ(StateOf(shard), arena::ConnectionState::kClosed);
    EXPECT_TRUE(Until([&] {  // the state goes before it
      return LastOf(shard).kind == static_cast<uint8_t>(arena::CompletionKind::kDisconnected);
    }));
    EXPECT_EQ(LastOf(shard).status, static_cast<uint8_t>(status));
  }

  TellingDevice device;
  TextListener listener;
  arena::Arena arena = arena::Arena::Create(TestShape(2), "kv").value();
  std::unique_ptr<Engine> engine;
  std::array<RawPeer, 2> peers;
  std::array<uint32_t, 2> connections = {};
  std::atomic<uint64_t> passed_{0};  // nanoseconds that the engine's clock is ahead
};

TEST_F(DeviceEvents, shouldTellOfAPortAndLeaveItsConnections) {
  Tell(DeviceEventType::kPortDown);
  Tell(DeviceEventType::kAddressesChanged);
  Tell(DeviceEventType::kPortUp);
  ASSERT_TRUE(Until([&] { return listener.Find("port_up").has_value(); }));
  ASSERT_TRUE(listener.Find("port_down"));
  EXPECT_THAT(listener.Find("port_down")->message,
              AllOf(HasSubstr("port 1 of device telling"), HasSubstr("says the test")));
  ASSERT_TRUE(listener.Find("device_addresses_changed"));
  EXPECT_TRUE(listener.lost().ok());
  for (uint32_t shard = 0; shard < 2; ++shard) {
    EXPECT_EQ(StateOf(shard), arena::ConnectionState::kEstablished);
    EXPECT_FALSE(peers[shard].disconnected);
  }
}

TEST_F(DeviceEvents, shouldEndTheConnectionOfAFailedQueuePairAlone) {
  Tell(DeviceEventType::kQueuePairFailed, arena.connection(connections[1]).qp_number);
  ASSERT_TRUE(Until([&] { return peers[1].disconnected; }));
  ASSERT_TRUE(Until([&] { return StateOf(1) == arena::ConnectionState::kClosed; }));
  ExpectEnded(1, verbs::CompletionStatus::kGeneralError);
  ASSERT_TRUE(listener.Find("queue_pair_failed"));
  EXPECT_EQ(listener.Find("queue_pair_failed")->connection, static_cast<int>(connections[1]));
  EXPECT_EQ(StateOf(0), arena::ConnectionState::kEstablished);
  EXPECT_TRUE(listener.lost().ok());
}

TEST_F(DeviceEvents, shouldOnlyTellOfAQueuePairThatIsGone) {
  Tell(DeviceEventType::kQueuePairFailed, 0x12'34'56'78);
  ASSERT_TRUE(Until([&] { return listener.Find("queue_pair_failed").has_value(); }));
  EXPECT_EQ(listener.Find("queue_pair_failed")->connection, -1);
  EXPECT_EQ(StateOf(0), arena::ConnectionState::kEstablished);
}

TEST_F(DeviceEvents, shouldEndAllConnectionsOfALostDeviceBeforeItStops) {
  Tell(DeviceEventType::kDeviceLost);
  ASSERT_TRUE(Until([&] { return !listener.lost().ok(); }));
  EXPECT_EQ(listener.lost().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(listener.lost().message()),
              AllOf(HasSubstr("device telling"), HasSubstr("says the test")));
  EXPECT_TRUE(listener.Find("device_lost"));
  for (uint32_t shard = 0; shard < 2; ++shard)
    ExpectEnded(shard, verbs::CompletionStatus::kFatalError);
  EXPECT_TRUE(Until([&] { return peers[0].disconnected && peers[1].disconnected; }));
  EXPECT_FALSE(engine->Post([] {}));
}

// With receives outstanding that never complete.
class MuteDevice : public DeviceEvents {
 protected:
  void PostReceives() {
    int pair[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    near.Reset(pair[0]);
    engine->Run([&] {
      engine->AddWorker(0, 7, FileDescriptor(pair[1]));
      engine->succession().SetReady(0);
    });
    for (uint32_t shard = 0; shard < 2; ++shard) {
      driver::testing::CommitWriter writer(&arena, shard);
      writer.Begin(1);
      writer.Receive(connections[shard], 0, 64);
      writer.Publish();
      engine->Post([] {});
      ASSERT_TRUE(Until([&] {
        return arena::LoadAcquire(arena.connection(connections[shard]).receive.posted) == 1;
      }));
    }
  }
  FileDescriptor near;
};

TEST_F(MuteDevice, shouldWaitForTheConnectionsToEndAndThenGiveThemUp) {
  PostReceives();
  device.mute = true;
  Tell(DeviceEventType::kDeviceLost);
  ASSERT_TRUE(Until([&] { return StateOf(1) == arena::ConnectionState::kDraining; }));
  EXPECT_TRUE(listener.lost().ok());
  passed_ = 3'600'000'000'000;
  ASSERT_TRUE(Until([&] { return !listener.lost().ok(); }));
  for (uint32_t shard = 0; shard < 2; ++shard)
    ExpectEnded(shard, verbs::CompletionStatus::kFatalError);
}

TEST_F(MuteDevice, shouldTakeNoConnectionWhileItGivesALostDeviceUp) {
  PostReceives();
  device.mute = true;
  Tell(DeviceEventType::kDeviceLost);
  ASSERT_TRUE(Until([&] { return StateOf(1) == arena::ConnectionState::kDraining; }));
  engine->Run([&] {
    EXPECT_EQ(engine->Connect(0, {"127.0.0.1", 1}, "", 0).status().code(),
              absl::StatusCode::kUnavailable);
    EXPECT_EQ(engine->Listen({"127.0.0.1", 0}).status().code(), absl::StatusCode::kUnavailable);
  });
}

TEST_F(MuteDevice, shouldEndOtherShardsInOrderWhenACompletionQueueIsUnusable) {
  PostReceives();
  device.broken = true;
  engine->Post([] {});
  ASSERT_TRUE(Until([&] { return !listener.lost().ok(); }));
  EXPECT_EQ(listener.lost().code(), absl::StatusCode::kDataLoss);
  for (uint32_t shard = 0; shard < 2; ++shard)
    ExpectEnded(shard, verbs::CompletionStatus::kFatalError);
  // Nobody knows what the first completed; the other's receive was flushed.
  EXPECT_EQ(arena.connection(connections[0]).receive.completed, 0u);
  EXPECT_EQ(arena.connection(connections[1]).receive.completed, 1u);
}

TEST(DeviceEventText, shouldHaveAKindAndACureForEachEvent) {
  verbs::DeviceInfo device;
  device.name = "mlx5_0";
  device.network_interface = "eth7";
  std::set<std::string_view> kinds;
  for (int type = 0; type <= static_cast<int>(DeviceEventType::kDeviceLost); ++type) {
    DeviceEvent event;
    event.type = DeviceEventType(type);
    const DeviceEventText text = DescribeDeviceEvent(event, device);
    EXPECT_TRUE(kinds.insert(text.kind).second) << text.kind;
    EXPECT_THAT(text.message, HasSubstr("mlx5_0"));
  }
  DeviceEvent down;
  down.type = DeviceEventType::kPortDown;
  EXPECT_THAT(DescribeDeviceEvent(down, device).message, HasSubstr("eth7"));
}

}  // namespace
}  // namespace baton::driver_process
