// Random commits, right and wrong, of a worker that changes its memory all the time. The driver
// takes them or refuses them whole, and has everything again when the worker is gone.
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <vector>

#include "lib/arena/arena.h"
#include "lib/arena/atomic_access.h"
#include "lib/driver/ownership.h"
#include "lib/driver/queue_driver.h"
#include "lib/native/local_driver.h"
#include "tests/lib/driver/commit_writer.h"
#include "tests/lib/driver/raw_peer.h"
#include "tests/lib/verbs/fabric.h"

namespace baton::driver {
namespace {

using arena::CommitEntry;
using arena::CommitKind;
using testing::CommitWriter;
using testing::RawPeer;
using testing::TestShape;

constexpr uint32_t kShards = 2;
constexpr uint32_t kConnections = 4;
constexpr uint64_t kWorkerId = 7;

class NoObserver : public native::LocalObserver {
 public:
  void OnConnectionState(uint32_t, std::string_view) override {}
  void OnRefusedConnection(std::string_view) override {}
};

class HostileWorkerTest : public ::testing::TestWithParam<uint32_t> {
 protected:
  void SetUp() override {
    device = verbs::testing::OpenDevice(fabric).value();
    local = native::LocalDriver::Create(&arena, device.get(), &observer).value();
    driver = &local->driver();
    port = ListenOnce(device.get(), local->objects(), {fabric.host, 0}).value().port;
    for (uint32_t shard = 0; shard < kShards; ++shard) {
      owners.emplace_back(&arena, shard);
      writers.emplace_back(&arena, shard);
      Begin(shard);
    }
    random.seed(GetParam());
  }
  uint64_t Below(uint64_t limit) { return random() % limit; }
  bool Chance(int percent) { return Below(100) < static_cast<uint64_t>(percent); }

  void Begin(uint32_t shard) {
    if (owners[shard].owned()) owners[shard].End(false);
    owners[shard].ProveDead(kWorkerId);
    owners[shard].GiveTo(0, kWorkerId);
    writers[shard].Begin(owners[shard].epoch());
  }
  // Anything anywhere in a log, a state slot or an area of private data.
  void Scribble() {
    const arena::WorkerMemoryMap map(arena.shape());
    auto* const words = reinterpret_cast<uint64_t*>(&arena.send_request(0, 0));
    const uint64_t count = kConnections * map.connection_bytes / sizeof(uint64_t);
    for (int i = 0; i < 50; ++i) words[Below(count)] = Chance(50) ? random() : Below(9);
  }
  // Mostly one that the shard has.
  uint32_t Choose(uint32_t shard) {
    const auto first = static_cast<uint32_t>(Below(kConnections));
    for (uint32_t i = 0; i < kConnections && !Chance(1); ++i) {
      const uint32_t index = (first + i) % kConnections;
      const arena::ConnectionRecord& record = arena.connection(index);
      if (record.shard == shard && record.state != 0) return index;
    }
    return first;
  }
  void Stage(uint32_t shard) {
    CommitWriter& writer = writers[shard];
    const uint64_t parts = 1 + Below(3);
    for (uint64_t i = 0; i < parts; ++i) {
      const uint32_t connection = Choose(shard);
      const arena::ShardRecord& record = arena.shard(shard);
      switch (Below(8)) {
        case 0:
        case 1:
          writer.Receive(connection, Below(1 << 16), static_cast<uint32_t>(Below(2048)));
          break;
        case 2:
          writer.Send(connection, Below(1 << 16), static_cast<uint32_t>(Below(2048)));
          break;
        case 3:
          writer.Acknowledge(record.acknowledged +
                             Below(record.completion_tail - record.acknowledged + 1));
          break;
        case 4:
          writer.Accept(connection, static_cast<uint32_t>(Below(kShards)));
          break;
        case 5:
          Chance(20) ? writer.Reject(connection) : writer.ShardState("x", 1);
          break;
        case 6:
          Chance(20) ? writer.Disconnect(connection) : writer.ShardState("y", 2);
          break;
        default:
          writer.ConnectionState(connection, "state", 3);
      }
    }
    if (Chance(3)) Distort(writer.Add(CommitKind(Below(10))));
    writer.Publish();
  }
  void Distort(CommitEntry& entry) {
    auto* const bytes = reinterpret_cast<uint8_t*>(&entry);
    for (int i = 0; i < 8; ++i) bytes[Below(sizeof(entry))] = static_cast<uint8_t>(random());
  }
  void TurnDriver() {
    local->TurnManager();
    uint32_t shard;
    while (local->HandleNotice(&shard)) {
    }
    for (uint32_t i = 0; i < kShards; ++i) {
      ASSERT_TRUE(driver->PollCompletions(i).ok());
      absl::Status error;
      for (;;) {
        const CommitOutcome outcome = driver->ApplyNext(i, &error);
        if (outcome == CommitOutcome::kIdle) break;
        if (outcome == CommitOutcome::kApplied) {
          ++applied;
          continue;
        }
        ++ended;
        Begin(i);
        break;
      }
    }
  }

  arena::Arena arena = arena::Arena::Create(TestShape(kShards, kConnections, 8), "kv").value();
  const verbs::testing::Fabric fabric = verbs::testing::FabricUnderTest();
  NoObserver observer;
  std::unique_ptr<verbs::Device> device;
  std::unique_ptr<native::LocalDriver> local;
  QueueDriver* driver = nullptr;  // that of `local`
  uint16_t port = 0;
  std::vector<Ownership> owners;
  std::vector<CommitWriter> writers;
  std::mt19937_64 random;
  int applied = 0, ended = 0;
};

TEST_P(HostileWorkerTest, shouldBreakNothingButItsConnections) {
  std::vector<std::unique_ptr<RawPeer>> peers(6);
  for (int round = 0; round < 5000; ++round) {
    auto& peer = peers[Below(peers.size())];
    if (!peer || Chance(2)) {
      peer = std::make_unique<RawPeer>();
      peer->Connect(port);
    } else if (peer->established && !peer->disconnected && Chance(30)) {
      if (peer->sent.size() < 40) peer->Send("message");
    }
    for (auto& each : peers) {
      if (each) each->Turn();
    }
    if (Chance(20)) Scribble();
    if (Chance(5)) {
      (void)local->manager().Connect(static_cast<uint32_t>(Below(kShards)),
                                     {fabric.host, Chance(50) ? port : uint16_t{1}}, "", round);
    }
    Stage(static_cast<uint32_t>(Below(kShards)));
    TurnDriver();
  }
  EXPECT_GT(applied, 500);
  EXPECT_GT(ended, 50);
  // A worker that behaves gets every slot back.
  peers.clear();
  ASSERT_TRUE(testing::Pump(
      [&] {
        for (uint32_t shard = 0; shard < kShards; ++shard) {
          for (uint32_t i = 0; i < kConnections; ++i) {
            const arena::ConnectionRecord& record = arena.connection(i);
            if (record.shard == shard && record.state != 0) writers[shard].Disconnect(i);
          }
          writers[shard].Acknowledge(arena.shard(shard).completion_tail).Publish();
        }
        TurnDriver();
      },
      [&] {
        return local->manager().connection_count() == 0 && arena.shard(0).connections == 0 &&
               arena.shard(1).connections == 0;
      }));
  for (uint32_t shard = 0; shard < kShards; ++shard) {
    const ShardCounters& counters = driver->counters(shard);
    EXPECT_EQ(counters.sends_committed, counters.sends_posted);
    EXPECT_EQ(counters.sends_posted, counters.sends_completed);
    EXPECT_EQ(counters.receives_committed, counters.receives_posted);
    EXPECT_EQ(counters.receives_posted, counters.receives_completed);
  }
  std::vector<std::unique_ptr<RawPeer>> fresh;
  for (uint32_t i = 0; i < kConnections; ++i) {
    fresh.push_back(std::make_unique<RawPeer>());
    fresh.back()->Connect(port);
  }
  EXPECT_TRUE(testing::Pump(
      [&] {
        for (auto& peer : fresh) peer->Turn();
        // A slot serves again only when its request, in the log of another shard maybe, is dealt
        // with.
        for (uint32_t shard = 0; shard < kShards; ++shard) {
          writers[shard].Acknowledge(arena.shard(shard).completion_tail).Publish();
        }
        TurnDriver();
      },
      [&] { return local->manager().connection_count() == kConnections; }));
}

INSTANTIATE_TEST_SUITE_P(Seeds, HostileWorkerTest, ::testing::Range(1u, 9u));

}  // namespace
}  // namespace baton::driver
