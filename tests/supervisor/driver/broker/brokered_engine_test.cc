// Brokers drive the shards in processes of their own. This process has the connections, the policy,
// and a worker that writes the banks of its shards itself.
#include "supervisor/driver/broker/brokered_engine.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/arena/atomic_access.h"
#include "lib/base/clock.h"
#include "supervisor/batond/spawn.h"
#include "supervisor/driver/device/nic_process.h"
#include "tests/harness/binaries.h"
#include "tests/harness/child_process.h"
#include "tests/harness/expectations.h"
#include "tests/harness/setting.h"
#include "tests/harness/wait_until.h"
#include "tests/lib/driver/commit_writer.h"
#include "tests/lib/driver/raw_peer.h"
#include "tests/native/stepper.h"

namespace baton::driver_process {
namespace {

using driver::testing::CommitWriter;
using driver::testing::RawPeer;
using driver::testing::TestShape;

class BrokersListener final : public EngineListener {
 public:
  void OnEvent(std::string_view kind, const std::string&, uint64_t, int, int) override {
    events.emplace_back(kind);
  }
  void OnFenced(uint64_t worker_id) override { fenced.push_back(worker_id); }
  void OnDeviceLost(const absl::Status& why) override { lost = why; }

  bool Has(std::string_view kind) const {
    return std::find(events.begin(), events.end(), kind) != events.end();
  }

  std::vector<std::string> events;  // kinds
  std::vector<uint64_t> fenced;
  absl::Status lost;
};

unsigned long long Number(uint64_t value) { return value; }

// A worker without a process.
struct SlotOf {
  uint32_t slot = 0;
  uint64_t id = 0;
  FileDescriptor wake;  // the worker's end
};

class BrokeredEngineTest : public ::testing::Test {
 protected:
  void SetUp() override {
    NicPlan plan;
    plan.program = harness::Binaries().Find("baton-nic").value();
    plan.forks = true;
    ASSERT_OK_AND_ASSIGN(nic_, StartNic(plan));
    arena::Shape shape = TestShape(kShards);
    shape.workers = kWorkers;
    arena_.emplace(arena::Arena::Create(shape, "kv").value());
    for (uint32_t i = 0; i < kShards; ++i) writers_.emplace_back(&*arena_, i);
    EngineOptions options;
    options.yield_microseconds = 1;
    ASSERT_OK_AND_ASSIGN(
        engine_,
        BrokeredEngine::Create(
            &*arena_, nic_.device.get(), &listener_, options,
            RealBrokerForks(ReplaceableCode(harness::Binaries().Find("libbaton-driver.so").value()),
                            Identity(), [](const auto& fork) { fork(); })));
    engine_->Start();
    ASSERT_TRUE(Until([&] { return engine_->broker() != 0 && engine_->twin() != 0; }));
  }
  void TearDown() override { engine_.reset(); }

  bool Until(const std::function<bool()>& done) {
    return harness::WaitUntil("what the broker does",
                              [&] {
                                engine_->Turn();
                                if (peer_) peer_->Turn();
                                return done();
                              })
        .ok();
  }

  SlotOf Add(uint32_t slot, uint64_t id) {
    int pair[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
    EXPECT_OK(engine_->CheckPlace(slot));
    arena_->ClearWorker(slot);
    engine_->AddWorker(slot, id, FileDescriptor(pair[1]), {}, Standing::kFirst);
    wakes_[slot] = CopyOf(pair[0]);
    return {slot, id, FileDescriptor(pair[0])};
  }
  SlotOf Ready(uint32_t slot) {
    SlotOf place = Add(slot, 100 + slot);
    engine_->succession().SetReady(slot);
    return place;
  }
  uint64_t OwnerOf(uint32_t shard) const { return engine_->succession().owner(shard).worker_id; }
  uint64_t EpochOf(uint32_t shard) const { return engine_->succession().owner(shard).epoch; }
  bool Owns(const SlotOf& place) {
    return Until([&] {
      for (uint32_t shard = 0; shard < kShards; ++shard) {
        if (OwnerOf(shard) != place.id) return false;
      }
      return true;
    });
  }
  // Ends the transaction of a shard's owner, who wakes a broker that sleeps.
  void Publish(uint32_t shard) {
    writers_[shard].Publish();
    const uint32_t slot = engine_->succession().owner(shard).slot;
    ASSERT_LT(slot, wakes_.size());
    EXPECT_EQ(send(wakes_[slot].get(), "", 1, MSG_DONTWAIT | MSG_NOSIGNAL), 1);
  }
  // The owner's first commit to each shard.
  void Adopt() {
    for (uint32_t shard = 0; shard < kShards; ++shard) {
      writers_[shard].Begin(EpochOf(shard));
      writers_[shard].Acknowledge(arena_->shard(shard).acknowledged);
      ASSERT_NO_FATAL_FAILURE(Publish(shard));
      ASSERT_TRUE(Until([&] { return arena_->succession(shard).served_epoch == EpochOf(shard); }));
    }
  }
  // Kills the broker that drives, and waits until its twin has taken over.
  void KillBroker() {
    const pid_t broker = engine_->broker(), twin = engine_->twin();
    ASSERT_EQ(kill(broker, SIGKILL), 0);
    ASSERT_TRUE(Until([&] { return engine_->broker() == twin && engine_->twin() != 0; }));
  }

  // The peer connects to shard 0, whose owner accepts.
  void Connect() {
    verbs::Address address;
    ASSERT_OK_AND_ASSIGN(address, engine_->Listen({"127.0.0.1", 0}));
    peer_.emplace();
    peer_->Connect(address.port);
    ASSERT_TRUE(Until([&] {
      for (uint32_t i = 0; i < arena_->shape().connections; ++i) {
        if (arena_->connection(i).state != 0) {
          connection_ = i;
          return true;
        }
      }
      return false;
    }));
    shard_ = arena_->connection(connection_).shard;
    writers_[shard_].Receive(connection_, 0, 64);
    writers_[shard_].Accept(connection_, shard_);
    ASSERT_NO_FATAL_FAILURE(Publish(shard_));
    ASSERT_TRUE(Until([&] {
      return peer_->established && arena_->connection(connection_).was_established != 0;
    }));
  }
  // The peer asks, and the owner answers, each once.
  void Exchange() {
    const std::string question = absl::StrCat("question ", ++exchanges_);
    const uint64_t told = Completions();
    const size_t received = peer_->received.size();
    peer_->Receive();
    peer_->Send(question);
    ASSERT_TRUE(Until([&] { return Asked() == exchanges_; }));
    const std::string asked(reinterpret_cast<const char*>(arena_->buffers()), question.size());
    EXPECT_EQ(asked, question);
    std::memcpy(arena_->buffers() + 512, question.data(), question.size());
    writers_[shard_].AcknowledgeWith(connection_, Completions());
    writers_[shard_].Receive(connection_, 0, 64);
    writers_[shard_].Send(connection_, 512, static_cast<uint32_t>(question.size()));
    ASSERT_NO_FATAL_FAILURE(Publish(shard_));
    ASSERT_TRUE(Until([&] { return peer_->received.size() > received; }));
    EXPECT_EQ(peer_->received.size(), received + 1);
    EXPECT_EQ(peer_->received.back(), question);
    EXPECT_GT(Completions(), told);
  }
  // How many messages of the peer the log has had.
  uint64_t Asked() const { return arena_->connection(connection_).receive.completed; }
  // Counts the instructions of a takeover.
  void CountInstructions(uint64_t* count) {
    constexpr uint64_t kAtATime = 200;
    const pid_t former = engine_->broker(), heir = engine_->twin();
    native::Stepper stepper(heir);
    ASSERT_EQ(kill(former, SIGKILL), 0);
    ASSERT_NE(stepper.RunTo({native::CodeOf(&pthread_mutex_consistent)}), 0u);
    while (!listener_.Has("broker_followed")) {
      ASSERT_TRUE(stepper.Step(kAtATime));
      *count += kAtATime;
      engine_->Turn();
    }
    stepper.Detach();
    ASSERT_TRUE(Until([&] { return engine_->twin() != 0 && engine_->twin() != heir; }));
  }

  uint64_t Completions() const { return arena::LoadAcquire(arena_->shard(shard_).completion_tail); }

  static constexpr uint32_t kShards = 2, kWorkers = 4;
  BrokersListener listener_;
  StartedNic nic_;
  std::optional<arena::Arena> arena_;
  std::vector<CommitWriter> writers_;           // by shard
  std::array<FileDescriptor, kWorkers> wakes_;  // the workers' ends, by slot
  std::unique_ptr<BrokeredEngine> engine_;
  std::optional<RawPeer> peer_;
  uint32_t connection_ = 0, shard_ = 0;
  uint64_t exchanges_ = 0;
};

TEST_F(BrokeredEngineTest, shouldServeAPeerAcrossTheDeathOfABroker) {
  const SlotOf owner = Ready(0);
  ASSERT_TRUE(Owns(owner));
  ASSERT_NO_FATAL_FAILURE(Adopt());
  ASSERT_NO_FATAL_FAILURE(Connect());
  const uint64_t before = Completions();
  ASSERT_NO_FATAL_FAILURE(KillBroker());
  peer_->Send("after the death");
  EXPECT_TRUE(Until([&] { return Completions() > before; }));
  peer_->Receive();
  writers_[shard_].Send(connection_, 0, 16);
  ASSERT_NO_FATAL_FAILURE(Publish(shard_));
  EXPECT_TRUE(Until([&] { return peer_->received.size() == 1; }));
  EXPECT_FALSE(peer_->disconnected);
  EXPECT_TRUE(listener_.Has("broker_followed"));
}

// The next broker applies what was committed while nobody drove.
TEST_F(BrokeredEngineTest, shouldApplyWhatWasCommittedWhileNobodyDrove) {
  const SlotOf owner = Ready(0);
  ASSERT_TRUE(Owns(owner));
  ASSERT_NO_FATAL_FAILURE(Adopt());
  ASSERT_EQ(kill(engine_->twin(), SIGKILL), 0);
  ASSERT_EQ(kill(engine_->broker(), SIGKILL), 0);
  writers_[1].ShardState("state", 7);
  ASSERT_NO_FATAL_FAILURE(Publish(1));
  EXPECT_TRUE(Until([&] { return arena_->shard(1).state_version == 7; }));
}

TEST_F(BrokeredEngineTest, shouldMoveShardsOfTheDead) {
  const SlotOf owner = Ready(0);
  ASSERT_TRUE(Owns(owner));
  ASSERT_NO_FATAL_FAILURE(Adopt());
  const SlotOf heir = Ready(1);
  engine_->succession().WorkerEnded(owner.slot, owner.id, "crash");
  EXPECT_TRUE(Owns(heir));
  EXPECT_EQ(engine_->succession().last_report(0).cause, "crash");
}

// A broker may be told late who is next. It gives a shard to nobody whom the policy withdraws.
TEST_F(BrokeredEngineTest, shouldRetireNobodyBehindTheBrokersBack) {
  const SlotOf owner = Ready(0);
  ASSERT_TRUE(Owns(owner));
  ASSERT_NO_FATAL_FAILURE(Adopt());
  const SlotOf heir = Ready(1);
  Succession& succession = engine_->succession();
  ASSERT_EQ(kill(engine_->broker(), SIGSTOP), 0);
  ASSERT_TRUE(succession.IsIdle(heir.slot, heir.id));
  succession.Retire(heir.slot, heir.id, /*retired=*/true);
  EXPECT_FALSE(succession.Settle());  // it could have given it a shard before
  succession.Retire(heir.slot, heir.id, /*retired=*/false);
  ASSERT_EQ(kill(engine_->broker(), SIGCONT), 0);
  succession.Retire(heir.slot, heir.id, /*retired=*/true);
  EXPECT_TRUE(Until([&] { return succession.Settle(); }));
  EXPECT_TRUE(succession.IsIdle(heir.slot, heir.id));
}

// The broker takes the shards from the slot's former worker, so the next one waits for that.
TEST_F(BrokeredEngineTest, shouldGiveASlotToNobodyBeforeTheBrokerHasDoneWithIt) {
  const SlotOf owner = Ready(0);
  ASSERT_TRUE(Owns(owner));
  ASSERT_NO_FATAL_FAILURE(Adopt());
  ASSERT_EQ(kill(engine_->broker(), SIGSTOP), 0);
  engine_->succession().WorkerDead(owner.slot, owner.id);
  EXPECT_TRUE(absl::IsUnavailable(engine_->CheckPlace(owner.slot)));
  ASSERT_EQ(kill(engine_->broker(), SIGCONT), 0);
  EXPECT_TRUE(Until([&] { return engine_->CheckPlace(owner.slot).ok(); }));
  EXPECT_EQ(OwnerOf(0), 0u);
}

TEST_F(BrokeredEngineTest, shouldLearnWhomTheBrokerHasFenced) {
  const SlotOf owner = Ready(0);
  ASSERT_TRUE(Owns(owner));
  ASSERT_NO_FATAL_FAILURE(Adopt());
  writers_[0].Acknowledge(1000);
  ASSERT_NO_FATAL_FAILURE(Publish(0));
  EXPECT_TRUE(Until([&] { return !listener_.fenced.empty(); }));
  EXPECT_EQ(listener_.fenced, std::vector<uint64_t>{owner.id});
  EXPECT_TRUE(listener_.Has("worker_fenced"));
  EXPECT_EQ(OwnerOf(0), 0u);
}

// It is told of each worker, reads that only when it takes over, and is replaced before the socket
// is full.
TEST_F(BrokeredEngineTest, shouldReplaceATwinThatHasTooMuchToRead) {
  const pid_t twin = engine_->twin(), broker = engine_->broker();
  for (uint64_t id = 1; engine_->twin() == twin && id < 1000; ++id) {
    const SlotOf place = Add(0, id);
    engine_->WatchWorker(0, id, getpid());
    engine_->ForgetWorker(0);
    engine_->succession().WorkerDead(0, id);
    engine_->Turn();
  }
  ASSERT_TRUE(Until([&] { return engine_->twin() != 0; }));
  EXPECT_NE(engine_->twin(), twin);
  EXPECT_EQ(engine_->broker(), broker);
  const SlotOf owner = Ready(0);
  ASSERT_TRUE(Owns(owner));
  ASSERT_NO_FATAL_FAILURE(KillBroker());
  ASSERT_NO_FATAL_FAILURE(Adopt());
}

// A worker sleeps. What it is to be woken for comes when another broker drives than when it
// attached.
TEST_F(BrokeredEngineTest, shouldWakeASleeperThatAnotherBrokerKnew) {
  const SlotOf owner = Ready(0);
  ASSERT_TRUE(Owns(owner));
  ASSERT_NO_FATAL_FAILURE(Adopt());
  ASSERT_NO_FATAL_FAILURE(Connect());
  ASSERT_NO_FATAL_FAILURE(KillBroker());
  char bytes[64];
  while (recv(owner.wake.get(), bytes, sizeof(bytes), 0) > 0) {
  }
  arena::StoreRelaxed(arena_->worker(owner.slot).sleeping, 1u);
  peer_->Send("wakes it");
  EXPECT_TRUE(Until([&] { return recv(owner.wake.get(), bytes, sizeof(bytes), 0) > 0; }));
}

TEST_F(BrokeredEngineTest, shouldKillABrokerThatDoesNothing) {
  const pid_t broker = engine_->broker(), twin = engine_->twin();
  ASSERT_EQ(kill(broker, SIGSTOP), 0);
  engine_->Beat();
  engine_->Beat();
  engine_->Beat();
  EXPECT_TRUE(Until([&] { return engine_->broker() == twin; }));
  EXPECT_TRUE(listener_.Has("broker_killed"));
}

// A broker that takes over is killed after so many instructions of it, and the next one repeats it.
// BATON_BROKER_STEPS: how often (12). More than 100 are consecutive instructions from a random one.
// BATON_SEED: chooses that one.
TEST_F(BrokeredEngineTest, shouldBeFollowedWhereItsTakeoverIsCutShort) {
  const SlotOf owner = Ready(0);
  ASSERT_TRUE(Owns(owner));
  ASSERT_NO_FATAL_FAILURE(Adopt());
  ASSERT_NO_FATAL_FAILURE(Connect());
  ASSERT_NO_FATAL_FAILURE(Exchange());
  uint64_t takeover = 0;
  ASSERT_NO_FATAL_FAILURE(CountInstructions(&takeover));
  const uint64_t kills = harness::Setting("BATON_BROKER_STEPS", 12);
  const uint64_t seed = harness::Setting("BATON_SEED", std::random_device()());
  const bool consecutive = kills > 100;
  const uint64_t first = consecutive ? seed % (takeover - std::min(takeover - 1, kills)) : 0;
  std::printf("%llu kills within %llu instructions, from %llu on; BATON_SEED=%llu\n", Number(kills),
              Number(takeover), Number(first), Number(seed));
  for (uint64_t i = 0; i < kills; ++i) {
    const uint64_t at = consecutive ? first + i : takeover * i / kills;
    SCOPED_TRACE(absl::StrCat("after ", at, " instructions"));
    const pid_t former = engine_->broker(), heir = engine_->twin();
    native::Stepper stepper(heir);
    ASSERT_EQ(kill(former, SIGKILL), 0);
    ASSERT_NE(stepper.RunTo({native::CodeOf(&pthread_mutex_consistent)}), 0u);
    ASSERT_TRUE(stepper.Step(at));
    ASSERT_EQ(kill(heir, SIGKILL), 0);
    ASSERT_TRUE(Until([&] {
      return engine_->broker() != 0 && engine_->broker() != former && engine_->broker() != heir &&
             engine_->twin() != 0 && engine_->twin() != heir;
    }));
    ASSERT_NO_FATAL_FAILURE(Exchange());
  }
  EXPECT_FALSE(peer_->disconnected);
}

TEST_F(BrokeredEngineTest, shouldGiveUpWhereEveryBrokerDiesAtOnce) {
  const uint64_t deadline = MonotonicNanoseconds() + 20'000'000'000;
  while (listener_.lost.ok() && MonotonicNanoseconds() < deadline) {
    for (const pid_t child : harness::ChildrenOf(getpid())) {
      if (harness::StatusOf(child, "Name") == "baton-broker") kill(child, SIGKILL);
    }
    engine_->Turn();
  }
  EXPECT_TRUE(absl::IsInternal(listener_.lost)) << listener_.lost;
}

// The twin is stopped when the broker that drives dies.
TEST_F(BrokeredEngineTest, shouldKillATwinThatDoesNotTakeOver) {
  const SlotOf owner = Ready(0);
  ASSERT_TRUE(Owns(owner));
  const pid_t broker = engine_->broker(), twin = engine_->twin();
  ASSERT_EQ(kill(twin, SIGSTOP), 0);
  ASSERT_EQ(kill(broker, SIGKILL), 0);
  ASSERT_TRUE(Until([&] { return engine_->broker() == 0; }));
  // It may have been stopped before it was ready, which takes time that it is given.
  ASSERT_TRUE(Until([&] {
    engine_->Beat();
    return kill(twin, 0) != 0;
  }));
  EXPECT_TRUE(Until([&] { return engine_->broker() != 0 && engine_->broker() != twin; }));
  ASSERT_NO_FATAL_FAILURE(Adopt());
}

TEST_F(BrokeredEngineTest, shouldTellTheOwnersOfALostDevice) {
  const SlotOf owner = Ready(0);
  ASSERT_TRUE(Owns(owner));
  ASSERT_NO_FATAL_FAILURE(Adopt());
  ASSERT_NO_FATAL_FAILURE(Connect());
  const uint64_t before = Completions();
  ASSERT_EQ(kill(nic_.process->pid(), SIGKILL), 0);
  EXPECT_TRUE(Until([&] { return !listener_.lost.ok(); }));
  ASSERT_GT(Completions(), before);
  const arena::CompletionEntry& last = arena_->completion(shard_, Completions() - 1);
  EXPECT_EQ(arena::CompletionKind(last.kind), arena::CompletionKind::kDisconnected);
}

}  // namespace
}  // namespace baton::driver_process
