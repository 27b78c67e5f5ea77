#include "supervisor/driver/engine/engine.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lib/arena/atomic_access.h"
#include "lib/base/clock.h"
#include "lib/verbs/soft/soft_device.h"
#include "supervisor/driver/engine/describe.h"
#include "supervisor/driver/engine/news_queue.h"
#include "tests/harness/lingering_socket.h"
#include "tests/harness/wait_until.h"
#include "tests/lib/driver/commit_writer.h"
#include "tests/lib/driver/own_memory.h"
#include "tests/lib/driver/raw_peer.h"
#include "tests/lib/verbs/fabric.h"
#include "tests/lib/verbs/fake_device.h"
#include "tests/lib/verbs/forwarding_device.h"

namespace baton::driver_process {
namespace {

using arena::CompletionKind;
using driver::testing::CommitWriter;
using driver::testing::RawPeer;
using driver::testing::TestShape;
using harness::WaitUntil;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Listener : public EngineListener {
 public:
  void OnEvent(std::string_view kind, const std::string& message, uint64_t, int, int) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    kinds_.emplace_back(kind);
    if (kind == "connection_poisoned") poisonings_.push_back(message);
  }
  std::vector<std::string> poisonings() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return poisonings_;
  }
  void OnFenced(uint64_t worker_id) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    fenced_.push_back(worker_id);
  }
  void OnDeviceLost(const absl::Status& why) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    device_lost_ = why;
  }
  absl::Status device_lost() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return device_lost_;
  }
  std::vector<std::string> kinds() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return kinds_;
  }
  std::vector<uint64_t> fenced() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return fenced_;
  }
  void OnReport(uint32_t shard, const ReconciliationReport& report) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    moves_.OnReport(shard, DescribeReport(report, 0));
  }
  void OnServed(uint32_t shard, uint64_t ended_epoch, uint64_t worker_id,
                uint64_t blackout_ns) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    moves_.OnServed(shard, ended_epoch, worker_id, blackout_ns);
  }
  std::vector<v1::ShardMove> moves() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return moves_.List(-1);
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> kinds_;
  std::vector<std::string> poisonings_;
  std::vector<uint64_t> fenced_;
  ShardMoves moves_;
  absl::Status device_lost_;
};

// A soft device whose completion queues are overrun when the test says so.
class BreakingDevice : public verbs::testing::ForwardingDevice {
 public:
  BreakingDevice() : ForwardingDevice(verbs::soft::CreateSoftDevice({}).value()) {}
  std::atomic<bool> broken{false};
  uint32_t max_completions = 1 << 20;

  verbs::DeviceLimits limits() const override {
    verbs::DeviceLimits limits = ForwardingDevice::limits();
    limits.max_completion_queue_entries = max_completions;
    return limits;
  }
  absl::StatusOr<std::unique_ptr<verbs::CompletionQueue>> CreateCompletionQueue(uint32_t) override {
    return std::make_unique<Queue>(&broken);
  }

 private:
  class Queue : public verbs::CompletionQueue {
   public:
    explicit Queue(const std::atomic<bool>* broken) : broken_(broken) {}
    absl::StatusOr<int> Poll(absl::Span<verbs::Completion>) override {
      if (*broken_) return absl::DataLossError("overrun");
      return 0;
    }
    absl::Status RequestNotification() override { return absl::OkStatus(); }

   private:
    const std::atomic<bool>* broken_;
  };
};

// A worker without a process: it maps the arena and writes it as its test says.
class FakeWorker {
 public:
  FakeWorker(const arena::Arena& arena, Engine* engine, uint32_t slot, uint64_t id)
      : slot(slot),
        id(id),
        view(arena::Arena::Map(Copy(arena.worker_log_fd()), Copy(arena.driver_log_fd()),
                               Copy(arena.buffers_fd()))
                 .value()),
        engine_(engine) {
    for (uint32_t i = 0; i < view.shape().shards; ++i) writers_.emplace_back(&view, i);
    int pair[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    wake.Reset(pair[0]);
    engine->Run([&] { engine->AddWorker(slot, id, FileDescriptor(pair[1])); });
  }

  void Ready() {
    engine_->Run([&] { engine_->succession().SetReady(slot); });
  }
  bool Owns(uint32_t shard = 0) const { return arena::OwnershipSlot(Word(shard)) == slot; }
  uint64_t Epoch(uint32_t shard = 0) const { return arena::OwnershipEpoch(Word(shard)); }
  bool AskedToRelease(uint32_t shard = 0) const {
    return arena::LoadAcquire(view.shard(shard).owner.release_requested) == Epoch(shard);
  }
  // Waits for the shard, and begins to write its bank. No commit yet.
  void Take(uint32_t shard = 0) {
    ASSERT_EQ(WaitUntil("the shard", [&] { return Owns(shard); }), absl::OkStatus());
    writers_[shard].Begin(Epoch(shard));
  }
  // The same, with the first commit.
  void Adopt(uint32_t shard = 0) {
    Take(shard);
    CommitAndWait(shard);
  }
  CommitWriter& writer(uint32_t shard = 0) { return writers_[shard]; }
  void Publish(uint32_t shard = 0) {
    writers_[shard].Publish();
    Wake();
  }
  void Wake() { (void)send(wake.get(), "", 1, MSG_DONTWAIT | MSG_NOSIGNAL); }
  // Commits what the writer has open (or nothing new), and waits until it was applied.
  void CommitAndWait(uint32_t shard = 0) {
    writers_[shard].Acknowledge(view.shard(shard).acknowledged);
    Publish(shard);
    const uint64_t head = arena::PackCursor(Epoch(shard), writers_[shard].tail());
    ASSERT_EQ(WaitUntil("the commit to be applied",
                        [&] { return arena::LoadAcquire(view.shard(shard).commit_head) == head; }),
              absl::OkStatus());
  }
  void Release(uint32_t shard = 0) {
    writers_[shard].Release();
    Publish(shard);
  }
  // It commits what is invalid, and is fenced.
  void CommitInvalid() {
    writer().Acknowledge(1000);
    Publish();
    ASSERT_EQ(WaitUntil("the fence", [&] { return !Owns(); }), absl::OkStatus());
  }
  void SetVersion(uint32_t version, uint32_t shard = 0) {
    writers_[shard].ShardState("x", version);
  }
  uint32_t version(uint32_t shard = 0) const { return view.shard(shard).state_version; }

  const uint32_t slot;
  const uint64_t id;
  arena::Arena view;
  FileDescriptor wake;

 private:
  static FileDescriptor Copy(int fd) { return FileDescriptor(fcntl(fd, F_DUPFD_CLOEXEC, 0)); }
  uint64_t Word(uint32_t shard) const {
    return arena::LoadAcquire(view.shard(shard).owner.ownership);
  }

  Engine* engine_;
  std::vector<CommitWriter> writers_;
};

// Processor time that this process uses while the test sleeps.
double ProcessorSecondsOf(uint32_t microseconds) {
  timespec before, after;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
  usleep(microseconds);
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
  return static_cast<double>(after.tv_sec - before.tv_sec) +
         static_cast<double>(after.tv_nsec - before.tv_nsec) / 1e9;
}

struct HandoffResult {
  std::atomic<bool> done{false};
  absl::Status status;
  double blackout_us = -1;

  Succession::HandoffDone Callback() {
    return [this](absl::Status outcome, double blackout) {
      status = std::move(outcome);
      blackout_us = blackout;
      done.store(true);
    };
  }
  absl::Status Wait() {
    const absl::Status waited = WaitUntil("the handoff", [&] { return done.load(); });
    return waited.ok() ? status : waited;
  }
};

class EngineTest : public ::testing::Test {
 protected:
  void SetUp() override { Make(TestShape(), {}); }
  void TearDown() override {
    if (engine) engine->Stop();
  }

  void Make(arena::Shape shape, const EngineOptions& options) {
    shape.workers = 8;
    if (engine) engine->Stop();
    engine.reset();
    const verbs::testing::Fabric fabric = verbs::testing::FabricUnderTest();
    device = verbs::testing::OpenDevice(fabric).value();
    arena.emplace(arena::Arena::Create(shape, "kv").value());
    engine = Engine::Create(&*arena, device.get(), &listener, options).value();
    port = engine->Listen({fabric.host, 0}).value().port;
    engine->Start();
  }
  std::unique_ptr<FakeWorker> Attached() {
    const auto slot = static_cast<uint32_t>((next_id_ - 100) % 8);  // free again by then
    return std::make_unique<FakeWorker>(*arena, engine.get(), slot, next_id_++);
  }
  std::unique_ptr<FakeWorker> Ready() {
    auto worker = Attached();
    worker->Ready();
    return worker;
  }
  // It has adopted its shard.
  std::unique_ptr<FakeWorker> Owner() {
    auto worker = Ready();
    worker->Adopt();
    return worker;
  }
  void Stopped(const FakeWorker& worker, std::string_view cause = "crash") {
    engine->Run([&] { engine->succession().WorkerEnded(worker.slot, worker.id, cause); });
  }
  void Dead(const FakeWorker& worker) {
    engine->Run([&] { engine->succession().WorkerDead(worker.slot, worker.id); });
  }
  std::unique_ptr<HandoffResult> Handoff(const FakeWorker& to, uint32_t shard = 0) {
    auto result = std::make_unique<HandoffResult>();
    engine->Run([&] { engine->succession().Handoff(shard, to.slot, result->Callback()); });
    return result;
  }
  ReconciliationReport Report(uint32_t shard = 0) {
    ReconciliationReport report;
    engine->Run([&] { report = engine->succession().last_report(shard); });
    return report;
  }
  std::string WaitingReason(uint32_t shard = 0) {
    std::string reason;
    engine->Run([&] { reason = engine->succession().waiting_reason(shard); });
    return reason;
  }
  uint64_t HeirId(uint32_t shard = 0) {
    uint64_t heir = 0;
    engine->Run([&] { heir = engine->succession().ownership(shard).heir_id(); });
    return heir;
  }
  uint64_t Handoffs(uint32_t shard = 0) {
    uint64_t count = 0;
    engine->Run([&] { count = engine->succession().handoff_blackout(shard).count(); });
    return count;
  }
  uint64_t Failovers(uint32_t shard = 0) {
    uint64_t count = 0;
    engine->Run([&] { count = engine->succession().failover_blackout(shard).count(); });
    return count;
  }

  Listener listener;
  std::unique_ptr<verbs::Device> device;
  std::optional<arena::Arena> arena;
  std::unique_ptr<Engine> engine;
  uint16_t port = 0;

 private:
  uint64_t next_id_ = 100;
};

// ---- Grants.

TEST_F(EngineTest, shouldWaitWithAReasonUntilAWorkerIsReady) {
  EXPECT_EQ(WaitingReason(), "no worker is ready");
  const auto worker = Attached();
  EXPECT_EQ(WaitingReason(), "no worker is ready");
  EXPECT_FALSE(worker->Owns());
  worker->Ready();
  EXPECT_TRUE(worker->Owns());
  EXPECT_EQ(worker->Epoch(), 1u);
  EXPECT_EQ(WaitingReason(), "");
}

TEST_F(EngineTest, shouldGiveAllShardsToTheFirstWorkerAndNameTheSecondHeir) {
  Make(TestShape(3), {});
  const auto first = Ready();
  const auto second = Ready();
  for (uint32_t shard = 0; shard < 3; ++shard) {
    first->Adopt(shard);
    EXPECT_EQ(HeirId(shard), second->id);
  }
}

TEST_F(EngineTest, shouldNotCountTheFirstOwnerAsAChange) {
  const auto worker = Owner();
  EXPECT_EQ(Handoffs(), 0u);
  EXPECT_EQ(Failovers(), 0u);
  ASSERT_EQ(WaitUntil("the event",
                      [&] {
                        const auto kinds = listener.kinds();
                        return std::count(kinds.begin(), kinds.end(), "shard_moved") == 1;
                      }),
            absl::OkStatus());
}

TEST_F(EngineTest, shouldApplyCommitsOfASleepingDriver) {
  const auto worker = Owner();
  for (uint32_t i = 1; i <= 200; ++i) {
    if (i % 20 == 0) {
      ASSERT_EQ(
          WaitUntil("the driver to sleep",
                    [&] { return arena::LoadRelaxed(worker->view.header().driver_sleeping) == 1; }),
          absl::OkStatus());
    }
    worker->SetVersion(i);
    worker->CommitAndWait();
    ASSERT_EQ(worker->version(), i);
  }
}

// Whatever it is that keeps it from its shards.
TEST_F(EngineTest, shouldTellHowBusyItIsAndHowLongATurnTook) {
  const auto load = [&] {
    EngineLoad copy;
    engine->Run([&] { copy = *engine->load(); });
    return copy;
  };
  constexpr uint64_t kLong = 3'000'000;
  const uint64_t begin = MonotonicNanoseconds();
  const EngineLoad before = load();
  engine->Run([&] {
    const uint64_t start = MonotonicNanoseconds();
    while (MonotonicNanoseconds() - start < kLong) {
    }
  });
  // The engine is not busy most of the time.
  ASSERT_EQ(WaitUntil("time to pass", [&] { return MonotonicNanoseconds() - begin > 20 * kLong; }),
            absl::OkStatus());
  const EngineLoad after = load();
  EXPECT_GE(after.busy_ns - before.busy_ns, kLong);
  EXPECT_LT(after.busy_ns - before.busy_ns, MonotonicNanoseconds() - begin);
  EXPECT_GE(after.turn.max(), kLong);
  EXPECT_GT(after.turns, before.turns);
}

TEST_F(EngineTest, shouldTellOfAShardTheFewestReceivesThatAConnectionHasLeft) {
  engine->Stop();
  google::protobuf::RepeatedPtrField<internal::ShardLoad> loads;
  *loads.Add() = DescribeShardLoad(engine->counters(0));
  EXPECT_TRUE(loads.Get(0).has_bytes_sent() && loads.Get(0).has_bytes_received());
  AddReceiveWindows(*arena, &loads);
  EXPECT_FALSE(loads.Get(0).has_receive_window());  // nobody is connected
  const auto connect = [&](uint32_t index, arena::ConnectionState state, uint64_t left) {
    arena::ConnectionRecord& record = arena->connection(index);
    record.state = static_cast<uint32_t>(state);
    record.receive.completed = 100;
    record.receive.posted = 100 + left;
  };
  connect(0, arena::ConnectionState::kEstablished, 7);
  connect(1, arena::ConnectionState::kEstablished, 3);
  connect(2, arena::ConnectionState::kDraining, 1);
  AddReceiveWindows(*arena, &loads);
  EXPECT_EQ(loads.Get(0).receive_window(), 3u);
  // There is no such shard.
  arena->connection(1).shard = 1u << 20;
  loads.Mutable(0)->clear_receive_window();
  AddReceiveWindows(*arena, &loads);
  EXPECT_EQ(loads.Get(0).receive_window(), 7u);
}

TEST_F(EngineTest, shouldTellOfNoHeapWhereShardsHaveNone) {
  google::protobuf::RepeatedPtrField<internal::ShardLoad> loads;
  loads.Add();
  AddHeaps(*arena, &loads);
  EXPECT_FALSE(loads.Get(0).has_heap());
}

TEST_F(EngineTest, shouldTakeNoWorkAfterItStopped) {
  engine->Stop();
  engine->Post([] { FAIL() << "ran after Stop"; });
}

// ---- Planned handoff.

TEST_F(EngineTest, shouldHandAShardOver) {
  const auto old_owner = Owner();
  const auto successor = Ready();
  const auto result = Handoff(*successor);
  EXPECT_TRUE(old_owner->AskedToRelease());
  EXPECT_TRUE(old_owner->Owns());
  EXPECT_EQ(HeirId(), successor->id);
  old_owner->SetVersion(5);
  old_owner->Release();
  successor->Take();
  EXPECT_EQ(successor->Epoch(), 2u);
  EXPECT_EQ(successor->version(), 5u);  // what the release was committed with
  EXPECT_FALSE(result->done.load());    // before the successor's first commit
  successor->CommitAndWait();
  EXPECT_EQ(result->Wait(), absl::OkStatus());
  EXPECT_GE(result->blackout_us, 0);
  EXPECT_EQ(Handoffs(), 1u);
  EXPECT_EQ(Failovers(), 0u);
  const ReconciliationReport report = Report();
  EXPECT_EQ(report.cause, "handoff");
  EXPECT_EQ(report.epoch, 1u);
  EXPECT_EQ(report.former_worker_id, old_owner->id);
  EXPECT_EQ(report.successor_worker_id, successor->id);
  EXPECT_EQ(HeirId(), old_owner->id);  // kept warm
}

TEST_F(EngineTest, shouldHandBackAndForthForEver) {
  const auto one = Owner();
  const auto other = Ready();
  FakeWorker* owner = one.get();
  FakeWorker* next = other.get();
  for (uint64_t epoch = 2; epoch <= 20; ++epoch) {
    const auto result = Handoff(*next);
    owner->Release();
    next->Adopt();
    ASSERT_EQ(result->Wait(), absl::OkStatus());
    ASSERT_EQ(next->Epoch(), epoch);
    std::swap(owner, next);
  }
}

// The epoch whose commit bank a former owner may still write to is skipped.
TEST_F(EngineTest, shouldListTheMovesAroundASkippedEpoch) {
  const auto dead = Owner();
  const auto one = Ready();
  const auto other = Ready();
  Stopped(*dead);  // its process is not proven dead
  FakeWorker* owner = one->Owns() ? one.get() : other.get();
  FakeWorker* next = one->Owns() ? other.get() : one.get();
  owner->Adopt();
  for (const uint64_t epoch : {3, 4, 6}) {
    const auto result = Handoff(*next);
    owner->Release();
    next->Adopt();
    ASSERT_EQ(result->Wait(), absl::OkStatus());
    ASSERT_EQ(next->Epoch(), epoch);
    std::swap(owner, next);
  }
  std::vector<uint64_t> ended;
  for (const v1::ShardMove& move : listener.moves()) {
    ended.push_back(move.report().epoch());
    EXPECT_NE(move.report().former_worker_id(), 0u);
    EXPECT_NE(move.report().successor_worker_id(), 0u);
  }
  EXPECT_THAT(ended, ElementsAre(4, 3, 2, 1));
}

TEST_F(EngineTest, shouldRefuseAHandoffToAWorkerThatIsNotReady) {
  const auto owner = Owner();
  const auto attached = Attached();
  const auto result = Handoff(*attached);
  EXPECT_EQ(result->Wait().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_FALSE(owner->AskedToRelease());
}

TEST_F(EngineTest, shouldHaveNothingToDoWhenTheOwnerIsTheSuccessor) {
  const auto owner = Owner();
  const auto result = Handoff(*owner);
  EXPECT_EQ(result->Wait(), absl::OkStatus());
}

TEST_F(EngineTest, shouldRefuseASecondHandoffAtTheSameTime) {
  const auto owner = Owner();
  const auto one = Ready();
  const auto other = Ready();
  const auto first = Handoff(*one);
  const auto second = Handoff(*other);
  EXPECT_EQ(second->Wait().code(), absl::StatusCode::kAborted);
  owner->Release();
  one->Adopt();
  EXPECT_EQ(first->Wait(), absl::OkStatus());
}

TEST_F(EngineTest, shouldHandOverAShardWhoseOwnerHasNotCommittedYet) {
  const auto owner = Ready();
  const auto successor = Ready();
  const auto result = Handoff(*successor);
  owner->Adopt();  // its first commit, before it looks at the request
  EXPECT_FALSE(result->done.load());
  owner->Release();
  successor->Adopt();
  EXPECT_EQ(result->Wait(), absl::OkStatus());
}

TEST_F(EngineTest, shouldCancelAHandoffThatNobodyAnswers) {
  const auto owner = Owner();
  const auto successor = Ready();
  const auto result = Handoff(*successor);
  engine->Run(
      [&] { engine->succession().CancelHandoff(0, absl::DeadlineExceededError("too late")); });
  EXPECT_EQ(result->Wait().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_FALSE(owner->AskedToRelease());
  owner->SetVersion(3);
  owner->CommitAndWait();
  EXPECT_EQ(owner->version(), 3u);
  EXPECT_TRUE(owner->Owns());
}

TEST_F(EngineTest, shouldGoOnWithTheOwnerWhoseReleaseCrossedTheCancellation) {
  const auto owner = Owner();
  const auto successor = Ready();
  HandoffResult result;
  engine->Run([&] {
    engine->succession().Handoff(0, successor->slot, result.Callback());
    owner->Release();  // it has seen the request, and the engine has not seen the answer
    engine->succession().WorkerDead(successor->slot, successor->id);
  });
  EXPECT_EQ(result.Wait().code(), absl::StatusCode::kUnavailable);
  // The one worker that is left did as it was asked: it serves on.
  ASSERT_EQ(WaitUntil("a new epoch", [&] { return owner->Owns() && owner->Epoch() == 2; }),
            absl::OkStatus());
  owner->Adopt();
}

TEST_F(EngineTest, shouldKeepTheOwnerWhenTheHeirDiesDuringAHandoff) {
  const auto owner = Owner();
  const auto successor = Ready();
  const auto result = Handoff(*successor);
  Stopped(*successor);
  EXPECT_EQ(result->Wait().code(), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(owner->AskedToRelease());
  EXPECT_TRUE(owner->Owns());
  EXPECT_EQ(HeirId(), 0u);
}

TEST_F(EngineTest, shouldReturnToTheOldOwnerWhenTheSuccessorDiesBeforeItsFirstCommit) {
  const auto old_owner = Owner();
  const auto successor = Ready();
  const auto result = Handoff(*successor);
  old_owner->Release();
  successor->Take();
  Stopped(*successor);
  EXPECT_EQ(result->Wait().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(old_owner->Owns());
  EXPECT_EQ(old_owner->Epoch(), 3u);
  old_owner->Adopt();
}

TEST_F(EngineTest, shouldGoToTheNamedSuccessorWhenTheOwnerDiesDuringAHandoff) {
  const auto owner = Owner();
  const auto named = Ready();
  const auto newest = Ready();
  const auto result = Handoff(*named);
  Stopped(*owner);
  named->Adopt();
  EXPECT_EQ(result->Wait(), absl::OkStatus());
  EXPECT_EQ(Report().cause, "crash");
  EXPECT_FALSE(newest->Owns());
}

TEST_F(EngineTest, shouldReportADeathAsItWasExplained) {
  const auto owner = Owner();
  engine->Run([&] { engine->succession().ExplainDeath(owner->slot, owner->id, "hang"); });
  Stopped(*owner);
  EXPECT_EQ(Report().cause, "hang");
}

TEST_F(EngineTest, shouldTellThatTheSuccessorGaveTheShardStraightBack) {
  const auto old_owner = Owner();
  const auto successor = Ready();
  const auto result = Handoff(*successor);
  old_owner->Release();
  successor->Take();
  successor->Release();  // without any commit before: it could not adopt
  EXPECT_EQ(result->Wait().code(), absl::StatusCode::kAborted);
  old_owner->Take();
  EXPECT_EQ(old_owner->Epoch(), 3u);
}

TEST_F(EngineTest, shouldNotGiveAShardAgainToWhoGaveItBackUnasked) {
  const auto unwilling = Owner();
  unwilling->Release();
  ASSERT_EQ(WaitUntil("the release", [&] { return !unwilling->Owns(); }), absl::OkStatus());
  EXPECT_EQ(WaitingReason(), "no worker is ready");
  EXPECT_EQ(Report().cause, "release");
  const auto willing = Owner();
}

// ---- Crashes and the cut.

TEST_F(EngineTest, shouldForgetWhatTheVictimHadNotPublished) {
  const auto victim = Owner();
  const auto heir = Ready();
  victim->SetVersion(10);
  victim->CommitAndWait();
  victim->SetVersion(11);
  victim->writer().Write();  // and dies before the tail
  Stopped(*victim);
  heir->Take();
  EXPECT_EQ(heir->version(), 10u);
  EXPECT_EQ(Report().recovered, 0u);
}

TEST_F(EngineTest, shouldRecoverEveryTransactionThatWasPublishedAtTheCut) {
  const auto victim = Owner();
  const auto heir = Ready();
  uint64_t recovered = 0;
  engine->Run([&] {
    // On the engine's thread, so that it has not looked in between.
    for (int i = 0; i < 5; ++i) victim->writer().Acknowledge(0).Publish();
    victim->writer().ShardState("x", 42).Publish();
    victim->writer().Acknowledge(0).Write();  // never published
    engine->succession().WorkerEnded(victim->slot, victim->id, "crash");
    recovered = engine->succession().last_report(0).recovered;
  });
  EXPECT_EQ(recovered, 6u);
  EXPECT_EQ(victim->view.shard(0).owner.cut_epoch, 1u);
  EXPECT_EQ(victim->view.shard(0).owner.cut_tail, 7u);  // with the first commit
  heir->Take();
  EXPECT_EQ(heir->version(), 42u);
  EXPECT_EQ(heir->Epoch(), 2u);
  heir->CommitAndWait();
  EXPECT_EQ(Failovers(), 1u);
  EXPECT_EQ(Handoffs(), 0u);
}

TEST_F(EngineTest, shouldIgnoreEverythingThatAFormerOwnerPublishes) {
  const auto former = Owner();
  const auto owner = Ready();
  Stopped(*former);
  owner->Adopt();
  former->writer().ShardState("x", 666);
  former->Publish();
  former->Release();
  owner->SetVersion(7);
  owner->CommitAndWait();
  EXPECT_EQ(owner->version(), 7u);
  EXPECT_TRUE(owner->Owns());
  EXPECT_EQ(owner->Epoch(), 2u);
}

TEST_F(EngineTest, shouldWaitAfterACrashWithoutAnotherWorker) {
  const auto victim = Owner();
  Dead(*victim);
  EXPECT_EQ(WaitingReason(), "no worker is ready");
  const auto successor = Owner();
  EXPECT_EQ(successor->Epoch(), 2u);
  EXPECT_EQ(Failovers(), 1u);
}

TEST_F(EngineTest, shouldHearOfTheSameDeathTwiceOnlyOnce) {
  const auto victim = Owner();
  const auto heir = Ready();
  Stopped(*victim);
  heir->Adopt();
  Dead(*victim);
  Dead(*victim);
  Stopped(*victim);
  EXPECT_TRUE(heir->Owns());
  EXPECT_EQ(heir->Epoch(), 2u);
}

TEST_F(EngineTest, shouldMoveEveryShardOfADeadWorker) {
  Make(TestShape(3), {});
  const auto victim = Ready();
  for (uint32_t shard = 0; shard < 3; ++shard) victim->Adopt(shard);
  const auto one = Ready();
  const auto other = Ready();
  Stopped(*victim);
  int ones = 0;
  for (uint32_t shard = 0; shard < 3; ++shard) {
    ones += one->Owns(shard);
    EXPECT_TRUE(one->Owns(shard) || other->Owns(shard));
  }
  EXPECT_TRUE(ones == 1 || ones == 2);  // shared out
}

TEST_F(EngineTest, shouldWaitForAProofOfDeathWhenEveryBankMayStillBeWritten) {
  std::vector<std::unique_ptr<FakeWorker>> former;
  for (uint32_t i = 0; i < arena::kCommitBanks; ++i) {
    former.push_back(Ready());
    former.back()->Adopt();
    Stopped(*former.back());
  }
  const auto last = Ready();
  EXPECT_FALSE(last->Owns());
  EXPECT_THAT(WaitingReason(), HasSubstr("not proven"));
  Dead(*former[1]);
  last->Adopt();
  EXPECT_EQ(last->Epoch() % arena::kCommitBanks, 2u);
}

// ---- Fencing.

TEST_F(EngineTest, shouldFenceAWorkerThatCommitsWhatIsInvalid) {
  const auto culprit = Owner();
  const auto heir = Ready();
  culprit->SetVersion(9);
  culprit->CommitInvalid();
  Dead(*culprit);
  heir->Take();
  EXPECT_EQ(heir->version(), 0u);  // nothing of it was applied
  heir->CommitAndWait();
  EXPECT_EQ(listener.fenced(), std::vector<uint64_t>{culprit->id});
  EXPECT_THAT(listener.kinds(), Contains("worker_fenced"));
  EXPECT_EQ(Report().cause, "fenced");
  EXPECT_FALSE(culprit->Owns());
}

// It still runs: what it stages late, in logs and state slots, would be its successor's.
TEST_F(EngineTest, shouldStartNoSuccessorOfAFencedWorkerBeforeItsProcessIsDead) {
  Make(TestShape(2), {});
  const auto culprit = Ready();
  culprit->Adopt(0);
  culprit->Adopt(1);
  const auto heir = Ready();
  culprit->CommitInvalid();
  for (uint32_t shard = 0; shard < 2; ++shard) {
    EXPECT_FALSE(culprit->Owns(shard));
    EXPECT_FALSE(heir->Owns(shard));
    EXPECT_THAT(WaitingReason(shard), HasSubstr("not proven"));
  }
  Stopped(*culprit);  // its locks are its own to mark
  EXPECT_FALSE(heir->Owns(1));
  Dead(*culprit);
  heir->Adopt(0);
  heir->Adopt(1);
}

TEST_F(EngineTest, shouldNotGiveAFencedWorkerAnythingAgain) {
  const auto culprit = Owner();
  culprit->CommitInvalid();
  culprit->Ready();
  EXPECT_FALSE(culprit->Owns());
  EXPECT_EQ(WaitingReason(), "no worker is ready");
}

// ---- Workers that misuse what wakes them.

TEST_F(EngineTest, shouldNotWaitForAWorkerThatDoesNotReadItsSignals) {
  const auto culprit = Owner();
  // Nothing that it can do to its end makes ours block: as often as it seems asleep.
  fcntl(culprit->wake.get(), F_SETFL, 0);
  for (int i = 0; i < 400; ++i) {
    uint32_t& sleeping = culprit->view.worker(culprit->slot).sleeping;
    arena::StoreRelaxed(sleeping, 1u);
    engine->Run([&] { engine->succession().AskToStop(culprit->slot, culprit->id); });
    culprit->CommitAndWait();
    ASSERT_EQ(WaitUntil("the signal", [&] { return arena::LoadRelaxed(sleeping) == 0; }),
              absl::OkStatus());
  }
  EXPECT_EQ(WaitingReason(), "");
}

TEST_F(EngineTest, shouldNotWakeAnOwnerBecauseItHasCommitted) {
  const auto worker = Owner();
  uint32_t& sleeping = worker->view.worker(worker->slot).sleeping;
  engine->Run([&] { arena::StoreRelaxed(sleeping, 1u); });
  for (int i = 0; i < 100; ++i) worker->CommitAndWait();
  engine->Run([] {});  // the turn that has applied the last one is over
  EXPECT_EQ(arena::LoadRelaxed(sleeping), 1u);
  char byte;
  EXPECT_LT(recv(worker->wake.get(), &byte, 1, MSG_DONTWAIT), 0);
}

TEST_F(EngineTest, shouldWakeAnOwnerThatMayWaitForRoomInItsCommitLog) {
  const auto worker = Owner();
  uint32_t& sleeping = worker->view.worker(worker->slot).sleeping;
  engine->Run([&] {
    for (uint32_t i = 0; i < arena::kCommitLogEntries / 2; ++i) {
      worker->writer().Acknowledge(0).Publish();
    }
    arena::StoreRelaxed(sleeping, 1u);
  });
  EXPECT_EQ(WaitUntil("the signal", [&] { return arena::LoadRelaxed(sleeping) == 0; }),
            absl::OkStatus());
}

TEST_F(EngineTest, shouldHearOthersWhenAWorkerTakesOrClosesSignals) {
  Make(TestShape(2), {});
  const auto culprit = Ready();
  culprit->Adopt(0);
  culprit->Adopt(1);
  const auto other = Ready();
  const auto result = Handoff(*other, 1);
  culprit->Release(1);
  other->Adopt(1);
  ASSERT_EQ(result->Wait(), absl::OkStatus());
  char byte;
  for (int i = 0; i < 100; ++i) {
    (void)recv(culprit->wake.get(), &byte, 1, MSG_DONTWAIT);
    if (i == 50) shutdown(culprit->wake.get(), SHUT_RDWR);
    other->CommitAndWait(1);
  }
  // An end is not heard again and again: the engine sleeps.
  EXPECT_LT(ProcessorSecondsOf(200'000), 0.1);
}

// The last close of what it passes waits.
TEST_F(EngineTest, shouldNotWaitForWhatAWorkerPassesWithASignal) {
  Make(TestShape(2), {});
  const auto culprit = Ready();
  culprit->Adopt(0);
  culprit->Adopt(1);
  const auto other = Ready();
  const auto result = Handoff(*other, 1);
  culprit->Release(1);
  other->Adopt(1);
  ASSERT_EQ(result->Wait(), absl::OkStatus());
  harness::LingeringSocket socket;
  const auto begin = std::chrono::steady_clock::now();
  harness::Pass(culprit->wake.get(), std::move(socket.lingers));
  for (int i = 0; i < 10; ++i) other->CommitAndWait(1);
  // The engine does not hear of it again and again: it sleeps.
  EXPECT_LT(ProcessorSecondsOf(200'000), 0.1);
  Dead(*culprit);
  other->CommitAndWait(1);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, harness::Patient(std::chrono::seconds(5)));
}

// ---- Effects outside.

TEST_F(EngineTest, shouldStartNoSuccessorBeforeTheProcessIsDeadWhenThereAreEffectsOutside) {
  EngineOptions options;
  options.outside_effects = true;
  Make(TestShape(), options);
  const auto owner = Owner();
  const auto heir = Ready();
  Stopped(*owner);
  const auto late = Ready();  // brings nobody forward either
  EXPECT_FALSE(heir->Owns());
  EXPECT_FALSE(late->Owns());
  EXPECT_THAT(WaitingReason(), HasSubstr("not proven"));
  Dead(*owner);
  EXPECT_TRUE(heir->Owns() || late->Owns());
}

TEST_F(EngineTest, shouldHandOverAtOnceWhatWasReleasedThoughThereAreEffectsOutside) {
  EngineOptions options;
  options.outside_effects = true;
  Make(TestShape(), options);
  const auto owner = Owner();
  const auto successor = Ready();
  const auto result = Handoff(*successor);
  owner->Release();
  successor->Adopt();
  EXPECT_EQ(result->Wait(), absl::OkStatus());
}

// ---- Reports.

class EngineReportTest : public EngineTest {
 protected:
  // Turns the peers until `done`.
  bool Until(const std::function<bool()>& done) {
    return driver::testing::Pump(
        [&] {
          for (RawPeer* peer : peers) peer->Turn();
        },
        done);
  }
  uint64_t Completions(const FakeWorker& worker) {
    return arena::LoadAcquire(worker.view.shard(0).completion_tail);
  }

  std::vector<RawPeer*> peers;
};

TEST_F(EngineReportTest, shouldTellWhatBecameOfEveryRequest) {
  const auto victim = Owner();
  RawPeer waiting, busy;
  peers = {&waiting};
  waiting.Connect(port);
  ASSERT_TRUE(Until([&] { return Completions(*victim) == 1; }));
  const uint32_t requested = victim->view.completion(0, 0).connection;
  peers.push_back(&busy);
  busy.Connect(port);
  ASSERT_TRUE(Until([&] { return Completions(*victim) == 2; }));
  const uint32_t connection = victim->view.completion(0, 1).connection;
  for (int i = 0; i < 4; ++i) victim->writer().Receive(connection, 0, 1024);
  victim->writer().Send(requested, 0, 8);  // not before it is accepted
  victim->writer().Send(requested, 0, 8).opcode = 2;
  victim->writer().Accept(connection, 0);
  victim->Publish();
  ASSERT_TRUE(Until([&] { return busy.established && Completions(*victim) == 3; }));
  victim->writer().Acknowledge(3);
  victim->Publish();
  for (int i = 0; i < 3; ++i) busy.Send("message");
  ASSERT_TRUE(Until([&] { return Completions(*victim) == 6; }));
  // It has looked at the first of the three messages, and dies before it commits.
  arena::StoreRelaxed(victim->view.bank(0, 1).read_cursor, uint64_t{4});
  Dead(*victim);
  const ReconciliationReport report = Report();
  EXPECT_EQ(report.cause, "crash");
  EXPECT_EQ(report.former_worker_id, victim->id);
  EXPECT_EQ(report.successor_worker_id, 0u);
  EXPECT_EQ(report.never_submitted, 2u);
  EXPECT_EQ(report.in_flight, 1u);
  EXPECT_EQ(report.completed_undelivered, 2u);
  EXPECT_EQ(report.delivered_uncommitted, 1u);
  EXPECT_GT(report.unix_micros, 0);
  ASSERT_EQ(report.requests.size(), 6u);
  int counts[4] = {};
  for (const arena::ReportedRequest& request : report.requests) {
    ++counts[static_cast<int>(request.outcome)];
    const bool unsent = request.outcome == RequestOutcome::kNeverSubmitted;
    EXPECT_EQ(request.connection, unsent ? requested : connection);
    EXPECT_EQ(request.send, unsent);
    if (unsent) {
      EXPECT_EQ(request.opcode, request.sequence == 0 ? 0 : 2);
    }
  }
  EXPECT_EQ(counts[static_cast<int>(RequestOutcome::kNeverSubmitted)], 2);
  EXPECT_EQ(counts[static_cast<int>(RequestOutcome::kInFlight)], 1);
  EXPECT_EQ(counts[static_cast<int>(RequestOutcome::kCompletedUndelivered)], 2);
  EXPECT_EQ(counts[static_cast<int>(RequestOutcome::kDeliveredUncommitted)], 1);
  // The successor is given exactly what was not acknowledged.
  const auto successor = Ready();
  successor->Take();
  EXPECT_EQ(successor->view.shard(0).acknowledged, 3u);
  EXPECT_EQ(successor->view.shard(0).completion_tail, 6u);
}

TEST_F(EngineReportTest, shouldNotBelieveAnImpossibleReadCursor) {
  for (const uint64_t cursor : {~uint64_t{0}, uint64_t{0}, uint64_t{1} << 40}) {
    const auto liar = Owner();
    arena::StoreRelaxed(liar->view.bank(0, liar->Epoch()).read_cursor, cursor);
    Dead(*liar);
    EXPECT_EQ(Report().completed_undelivered, 0u);
    EXPECT_EQ(Report().delivered_uncommitted, 0u);
  }
}

// ---- Accepts into another shard.

// The owner of two shards has published, in the one with the higher number, that it accepts a peer
// into the other.
class EngineAcceptTest : public EngineReportTest {
 protected:
  void Prepare() {
    Make(TestShape(2), {});
    owner = Ready();
    for (const uint32_t shard : {0u, 1u}) owner->Adopt(shard);
    peers = {&other_peer, &peer};
    other_peer.Connect(port);
    ASSERT_TRUE(Until([&] { return CompletionsOf(0) == 1; }));
    peer.Connect(port);
    ASSERT_TRUE(Until([&] { return CompletionsOf(1) == 1; }));
    connection = arena->completion(1, 0).connection;
  }
  uint64_t CompletionsOf(uint32_t shard) const {
    return arena::LoadAcquire(arena->shard(shard).completion_tail);
  }
  void PublishAccept() {
    owner->writer(1).Receive(connection, 0, 1024);
    owner->writer(1).Accept(connection, 0);
    owner->writer(1).Publish();
  }
  // Releases both shards, and accepts behind that from each into the other.
  void ReleaseBoth() {
    engine->Run([&] {
      for (const uint32_t shard : {0u, 1u}) {
        owner->writer(shard).Release();
        owner->writer(shard).Publish();
        owner->writer(shard).Accept(arena->completion(shard, 0).connection, 1 - shard);
        owner->writer(shard).Publish();
      }
    });
  }
  void ExpectAcceptedFor(FakeWorker& successor) {
    successor.Take(0);
    ASSERT_TRUE(Until([&] { return peer.established || peer.rejected; }));
    EXPECT_TRUE(peer.established);
    EXPECT_EQ(arena->connection(connection).shard, 0u);
    ASSERT_TRUE(Until([&] { return CompletionsOf(0) == 2; }));
    EXPECT_EQ(CompletionKind(arena->completion(0, 1).kind), CompletionKind::kEstablished);
  }

  std::unique_ptr<FakeWorker> owner;
  RawPeer other_peer, peer;
  uint32_t connection = 0;
};

TEST_F(EngineAcceptTest, shouldCountWhenTheOwnerDies) {
  ASSERT_NO_FATAL_FAILURE(Prepare());
  const auto successor = Ready();
  engine->Run([&] {
    PublishAccept();
    engine->succession().WorkerEnded(owner->slot, owner->id, "crash");
  });
  ExpectAcceptedFor(*successor);
}

TEST_F(EngineAcceptTest, shouldCountWhenTheOwnerReleasesTheOtherShard) {
  ASSERT_NO_FATAL_FAILURE(Prepare());
  const auto successor = Ready();
  const auto handoff = Handoff(*successor, 0);
  engine->Run([&] {
    PublishAccept();
    owner->writer(0).Release();
    owner->writer(0).Publish();
  });
  ExpectAcceptedFor(*successor);
  successor->CommitAndWait(0);
  EXPECT_EQ(handoff->Wait(), absl::OkStatus());
}

// Nothing that a worker publishes behind a release counts, whatever it says.
TEST_F(EngineAcceptTest, shouldNotFollowAcceptsBehindReleases) {
  ASSERT_NO_FATAL_FAILURE(Prepare());
  const auto successor = Ready();
  ReleaseBoth();
  for (const uint32_t shard : {0u, 1u}) {
    successor->Adopt(shard);
    EXPECT_EQ(successor->Epoch(shard), 2u);
  }
}

TEST_F(EngineAcceptTest, shouldNotFollowAcceptsBehindReleasesToNobody) {
  ASSERT_NO_FATAL_FAILURE(Prepare());
  ReleaseBoth();
  EXPECT_TRUE(Until([&] { return !owner->Owns(0) && !owner->Owns(1); }));
}

// The same, and one of the releases is in a transaction that accepts.
TEST_F(EngineAcceptTest, shouldEndEachShardOnce) {
  ASSERT_NO_FATAL_FAILURE(Prepare());
  const auto successor = Ready();
  engine->Run([&] {
    owner->writer(1).Accept(connection, 0);
    owner->writer(1).Release();
    owner->writer(1).Publish();
    owner->writer(0).Release();
    owner->writer(0).Publish();
    owner->writer(0).Accept(arena->completion(0, 0).connection, 1);
    owner->writer(0).Publish();
  });
  for (const uint32_t shard : {0u, 1u}) {
    successor->Adopt(shard);
    EXPECT_EQ(successor->Epoch(shard), 2u);
  }
  ASSERT_TRUE(Until([&] { return peer.established; }));
}

// ---- Poison.

class EnginePoisonTest : public EngineReportTest {
 protected:
  // `peer` is accepted by `owner`, and nothing is left to be acknowledged.
  uint32_t Established(RawPeer& peer, FakeWorker& owner, int receives = 4) {
    const uint64_t before = Completions(owner);
    peers.push_back(&peer);
    peer.Connect(port);
    EXPECT_TRUE(Until([&] { return Completions(owner) == before + 1; }));
    const uint32_t connection = owner.view.completion(0, before).connection;
    for (int i = 0; i < receives; ++i) owner.writer().Receive(connection, 0, 1024);
    owner.writer().Accept(connection, 0);
    owner.Publish();
    EXPECT_TRUE(Until([&] { return peer.established && Completions(owner) == before + 2; }));
    owner.writer().Acknowledge(before + 2);
    owner.Publish();
    EXPECT_TRUE(Until([&] { return owner.view.shard(0).acknowledged == before + 2; }));
    return connection;
  }
  // The index of its completion.
  uint64_t Message(RawPeer& peer, const FakeWorker& anybody, std::string_view text = "message") {
    const uint64_t before = Completions(anybody);
    peer.Send(text);
    EXPECT_TRUE(Until([&] { return Completions(anybody) == before + 1; }));
    return before;
  }
  // The owner of the message is dead, and had not looked at it.
  uint64_t MessageOfADeadOwner(RawPeer& peer) {
    const auto owner = Owner();
    Established(peer, *owner);
    const uint64_t completion = Message(peer, *owner);
    Dead(*owner);
    return completion;
  }
  static void Handle(const FakeWorker& owner, uint64_t completion) {
    arena::BankHeader& bank = owner.view.bank(0, owner.Epoch());
    arena::StoreRelaxed(bank.handling, completion + 1);
    arena::StoreRelaxed(bank.read_cursor, completion + 1);
  }
  // A new owner adopts the shard and dies, in the handler of `completion`.
  std::unique_ptr<FakeWorker> DieOn(uint64_t completion) {
    auto worker = Owner();
    Handle(*worker, completion);
    Dead(*worker);
    return worker;
  }
  const arena::CompletionEntry& Entry(const FakeWorker& anybody, uint64_t index) {
    return anybody.view.completion(0, index);
  }
  uint64_t Poisoned() {
    uint64_t count = 0;
    engine->Run([&] { count = engine->succession().poisoned_connections(0); });
    return count;
  }
};

class EngineRegionTest : public EnginePoisonTest {
 protected:
  // Tells how a region's registration, or its deregistration, has ended.
  absl::Status Ended(const std::function<void(ServiceEngine::GrantDone)>& begin) {
    std::atomic<bool> done{false};
    absl::Status status;
    engine->Run([&] {
      begin([&](absl::Status became) {
        status = std::move(became);
        done.store(true);
      });
    });
    EXPECT_EQ(WaitUntil("the device", [&] { return done.load(); }), absl::OkStatus());
    return status;
  }
  absl::Status Register(const driver::testing::OwnMemory& memory, uint64_t length) {
    const driver::GrantRange range = {
        .length = length,
        .descriptor = 1,
        .memfd = std::make_shared<const FileDescriptor>(CopyOf(memory.fd()))};
    absl::StatusOr<uint32_t> place;
    engine->Run([&] { place = engine->ReserveRegion(range); });
    if (!place.ok()) return place.status();
    return Ended(
        [&](ServiceEngine::GrantDone done) { engine->RegisterGrant(*place, std::move(done)); });
  }
  absl::Status Unregister(uint32_t region) {
    return Ended([&](ServiceEngine::GrantDone done) {
      engine->RevokeGrant(arena::GrantOfRegion(region), std::move(done));
    });
  }
};

TEST_F(EngineRegionTest, shouldSendOnceWhatAKilledOwnerHasCommittedFromARegion) {
  const auto owner = Owner();
  RawPeer peer;
  const uint32_t connection = Established(peer, *owner);
  driver::testing::OwnMemory memory;
  memory.Put(0, "firstlater");
  ASSERT_EQ(Register(memory, 4096), absl::OkStatus());
  owner->writer().Send(connection, arena::RegionOffset(1), 5);
  owner->CommitAndWait();  // it is outstanding: the peer has no receive
  owner->writer().Send(connection, arena::RegionOffset(1) + 5, 5);
  owner->Publish();
  Dead(*owner);
  const auto heir = Owner();
  const uint64_t before = Completions(*heir);
  EXPECT_EQ(Unregister(1).code(), absl::StatusCode::kFailedPrecondition);
  for (int i = 0; i < 3; ++i) peer.Receive();
  EXPECT_TRUE(Until([&] { return peer.received.size() == 2 && Completions(*heir) == before + 2; }));
  EXPECT_THAT(peer.received, ElementsAre("first", "later"));
  EXPECT_EQ(Unregister(1), absl::OkStatus());
  EXPECT_EQ(Completions(*heir), before + 2);
}

TEST_F(EnginePoisonTest, shouldTellWhatAPeerCanSendWhileNobodyServesIt) {
  auto owner = Owner();
  RawPeer peer;
  const uint64_t before_ns = MonotonicNanoseconds();
  const uint32_t connection = Established(peer, *owner, /*receives=*/4);
  const uint64_t established_ns = MonotonicNanoseconds();
  v1::Connection described;
  const auto describe = [&] { described = ConnectionDescriber(*engine).Describe(connection); };
  engine->Run(describe);
  EXPECT_EQ(described.receive_window(), 4u);
  EXPECT_EQ(described.receive_window_us(), 0);
  Message(peer, *owner);
  engine->Run(describe);
  EXPECT_EQ(described.receive_window(), 3u);
  EXPECT_GT(described.receive_window_us(), 0);
  // Three have completed since, and one is left.
  for (int i = 0; i < 2; ++i) Message(peer, *owner);
  const uint64_t asked_ns = MonotonicNanoseconds();
  engine->Run(describe);
  EXPECT_EQ(described.receive_window(), 1u);
  const uint64_t described_ns = MonotonicNanoseconds();
  EXPECT_GE(described.receive_window_us(), static_cast<double>(asked_ns - established_ns) / 3001);
  EXPECT_LE(described.receive_window_us(), static_cast<double>(described_ns - before_ns) / 2999);
}

TEST_F(EnginePoisonTest, shouldFailTheConnectionOnWhoseCompletionThreeOwnersDied) {
  auto owner = Owner();
  RawPeer bad, good;
  const uint32_t connection = Established(bad, *owner);
  const uint32_t other = Established(good, *owner);
  const uint64_t before = Message(good, *owner);
  const uint64_t suspect = Message(bad, *owner);
  const uint64_t after = Message(good, *owner);
  Handle(*owner, suspect);
  Dead(*owner);
  DieOn(suspect);
  EXPECT_EQ(Poisoned(), 0u);
  EXPECT_FALSE(Report().poisoned);
  const auto last = DieOn(suspect);
  EXPECT_EQ(Poisoned(), 1u);
  const ReconciliationReport report = Report();
  ASSERT_TRUE(report.poisoned);
  EXPECT_EQ(report.poisoned->connection, connection);
  EXPECT_EQ(report.poisoned->generation, 1u);
  EXPECT_EQ(report.poisoned->completion, suspect);
  EXPECT_EQ(report.poisoned->kind, CompletionKind::kReceive);
  EXPECT_EQ(report.poisoned->sequence, 0u);
  EXPECT_EQ(report.poisoned->deaths, 3u);
  EXPECT_EQ(report.poisoned->worker_ids, (std::vector<uint64_t>{100, 101, 102}));
  EXPECT_FALSE(report.poisoned->guessed);
  bool told = false;
  for (const arena::ReportedRequest& request : report.requests) {
    if (request.connection != connection || request.outcome != RequestOutcome::kPoisoned) continue;
    told |= request.sequence == 0;
  }
  EXPECT_TRUE(told);
  ASSERT_EQ(listener.poisonings().size(), 1u);
  EXPECT_EQ(listener.poisonings()[0],
            "connection 0 is failed: 3 workers (100, 101, 102) died on its receive 0, completion 5 "
            "of shard 0");

  const auto successor = Owner();
  EXPECT_EQ(successor->view.shard(0).acknowledged, before);
  EXPECT_EQ(Entry(*successor, suspect).status,
            static_cast<uint8_t>(verbs::CompletionStatus::kFlushError));
  for (const uint64_t index : {before, after}) {
    EXPECT_EQ(Entry(*successor, index).connection, other);
    EXPECT_EQ(Entry(*successor, index).status, 0u);
    EXPECT_EQ(Entry(*successor, index).byte_len, 7u);
  }
  EXPECT_TRUE(Until([&] { return bad.disconnected; }));
  // Three flushed receives and the end.
  EXPECT_TRUE(Until([&] { return Completions(*successor) == after + 5; }));
  EXPECT_EQ(static_cast<int>(Entry(*successor, after + 4).kind),
            static_cast<int>(CompletionKind::kDisconnected));
  successor->writer().Acknowledge(after + 5);
  successor->Publish();
  Message(good, *successor);
  EXPECT_FALSE(good.disconnected);
}

TEST_F(EnginePoisonTest, shouldGoByTheLimitThatItWasGiven) {
  EngineOptions options;
  options.poison_deaths = 5;
  Make(TestShape(), options);
  RawPeer bad;
  const uint64_t suspect = MessageOfADeadOwner(bad);
  for (int i = 0; i < 4; ++i) DieOn(suspect);
  EXPECT_EQ(Poisoned(), 0u);
  DieOn(suspect);
  EXPECT_EQ(Poisoned(), 1u);
}

TEST_F(EnginePoisonTest, shouldFailBothOfTwoPoisonedConnections) {
  auto owner = Owner();
  RawPeer one, two;
  Established(one, *owner);
  Established(two, *owner);
  const uint64_t first = Message(one, *owner);
  const uint64_t second = Message(two, *owner);
  Dead(*owner);
  for (int i = 0; i < 3; ++i) DieOn(first);
  EXPECT_EQ(Poisoned(), 1u);
  for (int i = 0; i < 3; ++i) DieOn(second);
  EXPECT_EQ(Poisoned(), 2u);
  EXPECT_TRUE(Until([&] { return one.disconnected && two.disconnected; }));
}

TEST_F(EnginePoisonTest, shouldNotCountWhatAnOperatorKilled) {
  RawPeer peer;
  const uint64_t suspect = MessageOfADeadOwner(peer);
  for (int i = 0; i < 10; ++i) {
    const auto worker = Owner();
    Handle(*worker, suspect);
    engine->Run([&] { engine->succession().PardonDeath(worker->slot, worker->id); });
    Dead(*worker);
  }
  EXPECT_EQ(Poisoned(), 0u);
  EXPECT_FALSE(peer.disconnected);
}

TEST_F(EnginePoisonTest, shouldNotCountReleasesAndFarewells) {
  RawPeer peer;
  const uint64_t suspect = MessageOfADeadOwner(peer);
  for (int i = 0; i < 4; ++i) {
    const auto worker = Owner();
    Handle(*worker, suspect);
    if (i % 2 == 0) {
      Stopped(*worker, "detached");
      Dead(*worker);
    } else {
      // Published, and found only when it is dead.
      engine->Run([&] {
        worker->writer().Release();
        worker->writer().Publish();
        engine->succession().WorkerDead(worker->slot, worker->id);
      });
    }
  }
  EXPECT_EQ(Poisoned(), 0u);
}

TEST_F(EnginePoisonTest, shouldCountAWorkerThatWasFencedInAHandler) {
  RawPeer peer;
  const uint64_t suspect = MessageOfADeadOwner(peer);
  for (int i = 0; i < 3; ++i) {
    const auto worker = Owner();
    Handle(*worker, suspect);
    worker->CommitInvalid();
    Dead(*worker);
  }
  EXPECT_EQ(Poisoned(), 1u);
}

TEST_F(EnginePoisonTest, shouldBlameNobodyForOwnersThatDieWhileTheyAdopt) {
  RawPeer peer;
  MessageOfADeadOwner(peer);
  for (int i = 0; i < 6; ++i) {
    const auto worker = Ready();
    worker->Take();  // and no commit
    arena::StoreRelaxed(worker->view.bank(0, worker->Epoch()).handling, uint64_t{0});
    Dead(*worker);
  }
  EXPECT_EQ(Poisoned(), 0u);
}

// They do not tell what they are dealing with: whose turn it is has to end.
TEST_F(EnginePoisonTest, shouldFailTheOldestWhenWorkersOfLayoutVersionOneDie) {
  auto owner = Owner();
  RawPeer first, second;
  const uint32_t oldest = Established(first, *owner);
  Established(second, *owner);
  Message(first, *owner);
  Message(second, *owner);
  Dead(*owner);
  for (int i = 0; i < 2; ++i) {
    const auto worker = Owner();
    Dead(*worker);
  }
  ASSERT_EQ(Poisoned(), 1u);
  const ReconciliationReport report = Report();
  ASSERT_TRUE(report.poisoned);
  EXPECT_EQ(report.poisoned->connection, oldest);
  EXPECT_TRUE(report.poisoned->guessed);
  EXPECT_THAT(listener.poisonings()[0], HasSubstr("they did not tell"));
}

TEST_F(EnginePoisonTest, shouldBelieveNothingOfAShardsOwnerAboutOtherShards) {
  Make(TestShape(2), {});
  auto liar = Ready();
  for (uint32_t shard = 0; shard < 2; ++shard) liar->Adopt(shard);
  RawPeer peer;
  Established(peer, *liar);
  for (int i = 0; i < 5; ++i) {
    arena::StoreRelaxed(liar->view.bank(0, liar->Epoch()).handling, ~uint64_t{0} - 1);
    arena::StoreRelaxed(liar->view.bank(0, liar->Epoch()).read_cursor, ~uint64_t{0});
    arena::StoreRelaxed(liar->view.bank(1, liar->Epoch()).handling, uint64_t{1} << 40);
    Dead(*liar);
    liar = Ready();
    for (uint32_t shard = 0; shard < 2; ++shard) liar->Adopt(shard);
  }
  EXPECT_EQ(Poisoned(), 0u);
  EXPECT_FALSE(peer.disconnected);
}

TEST_F(EngineReportTest, shouldNameEveryOutcome) {
  EXPECT_EQ(RequestOutcomeName(RequestOutcome::kPoisoned), "poisoned");
  EXPECT_EQ(RequestOutcomeName(RequestOutcome::kNeverSubmitted), "never_submitted");
  EXPECT_EQ(RequestOutcomeName(RequestOutcome::kInFlight), "in_flight");
  EXPECT_EQ(RequestOutcomeName(RequestOutcome::kCompletedUndelivered), "completed_undelivered");
  EXPECT_EQ(RequestOutcomeName(RequestOutcome::kDeliveredUncommitted), "delivered_uncommitted");
}

// A thread that passes waits until the test lets it.
class Gate {
 public:
  void Pass() {
    std::unique_lock<std::mutex> lock(mutex_);
    ++waiting_;
    changed_.wait(lock, [this] { return open_ > 0; });
    --waiting_;
    --open_;
  }
  void Open(int passes = 1) {
    const std::lock_guard<std::mutex> lock(mutex_);
    open_ += passes;
    changed_.notify_all();
  }
  absl::Status AwaitOne() {
    return WaitUntil("somebody at the gate", [this] {
      const std::lock_guard<std::mutex> lock(mutex_);
      return waiting_ == 1;
    });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int waiting_ = 0;
  int open_ = 0;
};

// A device that pins memory: that takes as long as the test says, either way.
class PinningDevice : public verbs::testing::ForwardingDevice {
 public:
  PinningDevice() : ForwardingDevice(verbs::soft::CreateSoftDevice({}).value()) {}

  bool registers_on_any_thread() const override { return true; }
  absl::StatusOr<std::unique_ptr<verbs::MemoryRegion>> RegisterMemory(void* address, size_t length,
                                                                      uint32_t access) override {
    if (!pins) return ForwardingDevice::RegisterMemory(address, length, access);
    gate.Pass();
    if (fails) return absl::ResourceExhaustedError("no memory can be pinned");
    return std::make_unique<Region>(this);
  }

  Gate gate;
  std::atomic<bool> pins{false}, fails{false};
  std::atomic<int> regions{0};

 private:
  class Region : public verbs::testing::KeyedRegion {
   public:
    explicit Region(PinningDevice* device) : KeyedRegion(4711), device_(*device) {
      ++device_.regions;
    }
    ~Region() override {
      device_.gate.Pass();
      --device_.regions;
    }

   private:
    PinningDevice& device_;
  };
};

class EngineGrantTest : public EngineTest {
 protected:
  void SetUp() override {
    auto pinning_device = std::make_unique<PinningDevice>();
    pinning = pinning_device.get();
    device = std::move(pinning_device);
    arena::Shape shape = TestShape();
    shape.workers = 8;
    arena.emplace(arena::Arena::Create(shape, "kv").value());
    engine = Engine::Create(&*arena, device.get(), &listener, {}).value();
    engine->Start();
    pinning->pins = true;
  }
  void TearDown() override {
    pinning->gate.Open(100);
    EngineTest::TearDown();
    engine.reset();
    EXPECT_EQ(pinning->regions, 0);
  }

  // What became of a grant's registration or revocation, later.
  struct Outcome {
    std::atomic<bool> done{false};
    absl::Status status;
    absl::Status Wait() {
      const absl::Status waited = WaitUntil("the device", [&] { return done.load(); });
      return waited.ok() ? status : waited;
    }
    ServiceEngine::GrantDone Callback() {
      return [this](absl::Status became) {
        status = std::move(became);
        done.store(true);
      };
    }
  };
  absl::StatusOr<uint32_t> Reserve(uint64_t length = 64) {
    absl::StatusOr<uint32_t> grant;
    engine->Run([&] { grant = engine->ReserveGrant(0, length, verbs::kRemoteRead); });
    return grant;
  }
  // Returns whether its place is free: it is reserved when all other free ones are.
  bool ComesAgain(uint32_t grant) {
    for (absl::StatusOr<uint32_t> other = Reserve(); other.ok(); other = Reserve()) {
      if (*other == grant) return true;
    }
    return false;
  }
  // Neither waits for the engine.
  void Register(uint32_t grant, Outcome* outcome) {
    engine->Post([=, this] { engine->RegisterGrant(grant, outcome->Callback()); });
  }
  void Revoke(uint32_t grant, Outcome* outcome) {
    engine->Post([=, this] { engine->RevokeGrant(grant, outcome->Callback()); });
  }
  uint64_t Granted(uint32_t grant) { return arena::LoadAcquire(arena->grant(grant).length); }
  uint32_t Regions() {
    uint32_t count = 0;
    engine->Run([&] { count = engine->device_objects().memory_regions; });
    return count;
  }

  PinningDevice* pinning = nullptr;
};

TEST_F(EngineGrantTest, shouldServeShardsWhileMemoryIsRegistered) {
  const auto owner = Ready();
  const auto heir = Ready();
  owner->Adopt();
  Outcome outcome;
  const uint32_t grant = Reserve().value();
  Register(grant, &outcome);
  ASSERT_EQ(pinning->gate.AwaitOne(), absl::OkStatus());
  owner->CommitAndWait();
  Stopped(*owner);
  heir->Adopt();
  // Peers may have access before anybody is told: the memory is nobody else's.
  EXPECT_FALSE(outcome.done);
  EXPECT_EQ(Granted(grant), 64u);
  EXPECT_EQ(arena->grant(grant).rkey, 0u);
  pinning->gate.Open();
  EXPECT_EQ(outcome.Wait(), absl::OkStatus());
  EXPECT_EQ(Granted(grant), 64u);
  EXPECT_EQ(arena->grant(grant).rkey, 4711u);
}

TEST_F(EngineGrantTest, shouldServeShardsWhileMemoryIsDeregistered) {
  const auto owner = Owner();
  const uint32_t grant = Reserve().value();
  const uint32_t regions = Regions();
  Outcome registered, revoked;
  pinning->gate.Open();
  Register(grant, &registered);
  ASSERT_EQ(registered.Wait(), absl::OkStatus());
  Revoke(grant, &revoked);
  ASSERT_EQ(pinning->gate.AwaitOne(), absl::OkStatus());
  owner->CommitAndWait();
  // Peers may still have access: the grant's place and its bytes are nobody else's, and nobody is
  // told that they are.
  EXPECT_FALSE(revoked.done);
  EXPECT_EQ(Granted(grant), 64u);
  EXPECT_EQ(Regions(), regions);
  Outcome again;
  Revoke(grant, &again);
  EXPECT_EQ(again.Wait().code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(Reserve().value(), grant);
  pinning->gate.Open();
  EXPECT_EQ(revoked.Wait(), absl::OkStatus());
  EXPECT_EQ(Granted(grant), 0u);
  Outcome last;
  Revoke(grant, &last);
  EXPECT_EQ(last.Wait().code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(ComesAgain(grant));
}

TEST_F(EngineGrantTest, shouldServeShardsWhileARegionIsRegisteredAndDeregistered) {
  const auto owner = Owner();
  const driver::testing::OwnMemory memory(4096);
  const driver::GrantRange range = {
      .length = 4096,
      .descriptor = 1,
      .memfd = std::make_shared<const FileDescriptor>(CopyOf(memory.fd()))};
  absl::StatusOr<uint32_t> place;
  engine->Run([&] { place = engine->ReserveRegion(range); });
  ASSERT_TRUE(place.ok()) << place.status();
  const arena::RegionRecord& record = arena->region(arena::RegionOfGrant(*place));
  Outcome registered, revoked, again;
  Register(*place, &registered);
  ASSERT_EQ(pinning->gate.AwaitOne(), absl::OkStatus());
  owner->CommitAndWait();
  EXPECT_EQ(arena::LoadAcquire(record.length), 0u);  // nobody can name what is not
  pinning->gate.Open();
  ASSERT_EQ(registered.Wait(), absl::OkStatus());
  EXPECT_EQ(arena::LoadAcquire(record.length), 4096u);
  EXPECT_EQ(record.lkey, 4711u);
  Revoke(*place, &revoked);
  ASSERT_EQ(pinning->gate.AwaitOne(), absl::OkStatus());
  EXPECT_EQ(arena::LoadAcquire(record.length), 0u);  // and nobody any more
  owner->CommitAndWait();
  EXPECT_FALSE(revoked.done);
  Revoke(*place, &again);
  EXPECT_EQ(again.Wait().code(), absl::StatusCode::kUnavailable);
  pinning->gate.Open();
  EXPECT_EQ(revoked.Wait(), absl::OkStatus());
}

TEST_F(EngineGrantTest, shouldRevokeNothingThatIsBeingRegistered) {
  const uint32_t grant = Reserve().value();
  Outcome registered, revoked;
  Register(grant, &registered);
  ASSERT_EQ(pinning->gate.AwaitOne(), absl::OkStatus());
  Revoke(grant, &revoked);
  EXPECT_EQ(revoked.Wait().code(), absl::StatusCode::kUnavailable);
  pinning->gate.Open();
  EXPECT_EQ(registered.Wait(), absl::OkStatus());
}

TEST_F(EngineGrantTest, shouldFreeThePlaceOfWhatCouldNotBeRegistered) {
  const uint32_t grant = Reserve().value();
  Outcome registered, revoked;
  pinning->fails = true;
  pinning->gate.Open();
  Register(grant, &registered);
  EXPECT_EQ(registered.Wait().code(), absl::StatusCode::kResourceExhausted);
  Revoke(grant, &revoked);
  EXPECT_EQ(revoked.Wait().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Granted(grant), 0u);
  EXPECT_TRUE(ComesAgain(grant));
}

TEST_F(EngineGrantTest, shouldKeepNoRegionWhenItStopsWhileMemoryIsRegistered) {
  Outcome registered;
  Register(Reserve().value(), &registered);
  ASSERT_EQ(pinning->gate.AwaitOne(), absl::OkStatus());
  std::thread stopping([this] { engine->Stop(); });
  pinning->gate.Open(2);
  stopping.join();
  engine.reset();
  EXPECT_EQ(pinning->regions, 0);
}

TEST(EngineOnASmallDevice, shouldRefuseAServiceThatCouldOverrunACompletionQueue) {
  const arena::Shape shape = TestShape();
  auto arena = arena::Arena::Create(shape, "large");
  ASSERT_TRUE(arena.ok()) << arena.status();
  BreakingDevice device;
  // With the room that a recovery of the driver needs.
  device.max_completions =
      shape.connections * (shape.send_queue_depth + shape.receive_queue_depth) +
      arena::kShardMarkers + arena::kSpares - 1;
  Listener listener;
  const auto engine = Engine::Create(&*arena, &device, &listener, EngineOptions());
  EXPECT_EQ(engine.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(engine.status().message()), HasSubstr("lower max_connections"));
  device.max_completions += 1;
  EXPECT_TRUE(Engine::Create(&*arena, &device, &listener, EngineOptions()).ok());
}

TEST(EngineOnABrokenDevice, shouldStopAndSayThatTheDeviceIsLost) {
  auto arena = arena::Arena::Create(TestShape(), "broken");
  ASSERT_TRUE(arena.ok()) << arena.status();
  BreakingDevice device;
  Listener listener;
  auto engine = Engine::Create(&*arena, &device, &listener, EngineOptions());
  ASSERT_TRUE(engine.ok()) << engine.status();
  (*engine)->Start();
  device.broken = true;
  (*engine)->Post([] {});  // so that it looks
  ASSERT_EQ(WaitUntil("the engine to notice", [&] { return !listener.device_lost().ok(); }),
            absl::OkStatus());
  EXPECT_EQ(listener.device_lost().code(), absl::StatusCode::kDataLoss);
  // Nobody waits for an engine that has stopped.
  (*engine)->Run([] {});
}

}  // namespace
}  // namespace baton::driver_process
