// The engine of a native service and the drivers of its workers, in one process: who owns a shard
// when, whoever dies. That queues go on in another process is tests/native's and the machine's to
// show.
#include "supervisor/driver/native/native_engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/futex.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "lib/arena/atomic_access.h"
#include "lib/base/crash_point.h"
#include "lib/driver/device_objects.h"
#include "supervisor/driver/engine/reconciliation.h"
#include "supervisor/driver/engine/shard_deaths.h"
#include "supervisor/driver/engine/shard_reports.h"
#include "tests/lib/driver/commit_writer.h"
#include "tests/lib/driver/raw_peer.h"
#include "tests/lib/verbs/fabric.h"
#include "tests/lib/verbs/fake_device.h"
#include "tests/lib/verbs/forwarding_device.h"

namespace baton::driver_process {
namespace {

using arena::CompletionKind;
using driver::testing::CommitWriter;
using driver::testing::Pump;
using driver::testing::RawPeer;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// In one process nothing has to survive a fork.
class UnforkedDevice final : public verbs::testing::ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;
  absl::Status CheckForkable() const override { return absl::OkStatus(); }
  bool NextEvent(verbs::CmEvent* event) override {
    if (requests == 0) return inner().NextEvent(event);
    --requests;
    *event = {};
    event->type = verbs::CmEventType::kConnectRequest;
    event->listener = &listener_;
    event->new_id = std::make_unique<verbs::testing::FakeConnectionId>();
    return true;
  }

  bool NextDeviceEvent(verbs::DeviceEvent* event) override {
    if (!std::exchange(queue_fails, false)) return inner().NextDeviceEvent(event);
    *event = {};
    event->type = verbs::DeviceEventType::kCompletionQueueFailed;
    event->text = "CQ_ERR";
    return true;
  }

  uint32_t requests = 0;     // of peers, which want nothing more
  bool queue_fails = false;  // it is about to be told

 private:
  verbs::testing::FakeListener listener_{{"127.0.0.1", 1}};
};

// A worker's process: its driver, and the locks of its threads.
class Worker {
 public:
  Worker(NativeEngine& engine, arena::Arena& arena, uint32_t slot)
      : slot_(slot), arena_(arena), driver_(Make(engine, slot)) {
    arena_.ClearWorker(slot);
    lock() = static_cast<uint32_t>(getpid());
  }
  // Marks the worker's lock as the kernel does when all threads of a worker are dead.
  void Die() {
    driver_.reset();
    std::atomic_ref<uint32_t>(lock()).store(FUTEX_OWNER_DIED);
    syscall(SYS_futex, &lock(), FUTEX_WAKE, 64, nullptr, nullptr, 0);
  }
  int Attend() { return host().attend(host().context); }
  int Drive(uint32_t shard) {
    const int error = host().apply(host().context, shard);
    return error != 0 ? error : host().poll(host().context, shard);
  }
  int Apply(uint32_t shard) { return host().apply(host().context, shard); }
  int Poll(uint32_t shard) { return host().poll(host().context, shard); }
  int RequestNotification(uint32_t shard) {
    return host().request_notification(host().context, shard);
  }
  int event_fd() { return host().event_fd; }
  int Release(uint32_t shard, uint64_t epoch) {
    return host().release(host().context, shard, epoch);
  }
  uint64_t id() const { return slot_ + 1; }
  BatonNativeHost& host() { return *driver_->host(); }

 private:
  static std::unique_ptr<NativeDriver> Make(NativeEngine& engine, uint32_t slot) {
    return NativeDriver::Create(engine.InheritanceOf(slot, slot + 1)).value();
  }
  uint32_t& lock() { return arena_.worker(slot_).thread_locks[0].futex; }

  const uint32_t slot_;
  arena::Arena& arena_;
  std::unique_ptr<NativeDriver> driver_;
};

struct Killed {};

class NativeEngineTest : public ::testing::Test, private EngineListener {
 protected:
  void SetUp() override { Make(/*shards=*/1); }
  void Make(uint32_t shards) { Make(driver::testing::TestShape(shards)); }
  void Make(arena::Shape shape) {
    shape.pooled_queue_pairs = 4;
    shape.workers = 4;
    engine_.reset();
    arena_.emplace(arena::Arena::Create(shape, "kv").value());
    device_ = std::make_unique<UnforkedDevice>(verbs::testing::OpenDevice(fabric_).value());
    MakeEngine({});
    writer_.emplace(&*arena_, 0);
  }
  void MakeEngine(const ServiceOptions& options) {
    engine_.reset();
    engine_ = NativeEngine::Create(&*arena_, device_.get(), this, options).value();
  }
  void TearDown() override {
    SetCrashPointHandler(nullptr);
    for (auto& worker : workers_) worker.reset();
    engine_.reset();
  }

  Worker& Start(uint32_t slot) {
    workers_[slot] = std::make_unique<Worker>(*engine_, *arena_, slot);
    int pair[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    close(pair[0]);
    engine_->AddWorker(slot, slot + 1, FileDescriptor(pair[1]), {}, Standing::kFirst);
    engine_->succession().SetReady(slot);
    return *workers_[slot];
  }
  // It takes at once what there is to take for it.
  Worker& StartAttending(uint32_t slot) {
    Worker& worker = Start(slot);
    EXPECT_EQ(worker.Attend(), 0);
    return worker;
  }
  // It owns the shard, and has committed.
  Worker& StartOwner() {
    Worker& worker = StartAttending(0);
    Begin(worker);
    return worker;
  }
  // It has a connection to `peer`, too.
  Worker& StartOwner(RawPeer& peer) {
    Worker& worker = StartOwner();
    Connect(worker, peer);
    return worker;
  }
  void Bury(uint32_t slot) {
    workers_[slot].reset();
    engine_->succession().WorkerDead(slot, slot + 1);
  }
  uint64_t owner() { return engine_->succession().owner(0).worker_id; }
  uint64_t epoch() { return engine_->succession().owner(0).epoch; }

  void Commit(Worker& worker) {
    writer_->Publish();
    ASSERT_EQ(worker.Drive(0), 0);
    engine_->Turn();
  }
  // The first transaction of a new owner.
  void Begin(Worker& worker) {
    writer_->Begin(epoch());
    writer_->Acknowledge(read_);
    Commit(worker);
  }

  arena::CompletionEntry Next(Worker& worker, RawPeer& peer) {
    const auto turn = [&] {
      engine_->Turn();
      ASSERT_EQ(worker.Attend(), 0);
      ASSERT_EQ(worker.Drive(0), 0);
      peer.Turn();
    };
    EXPECT_TRUE(Pump(turn, [&] { return arena_->shard(0).completion_tail > read_; }));
    return arena_->completion(0, read_++);
  }
  void Connect(Worker& worker, RawPeer& peer) {
    peer.Connect(engine_->Listen({fabric_.host, 0}).value().port, "");
    connection_ = Next(worker, peer).connection;
    writer_->Receive(connection_, 0, 1024);
    writer_->Accept(connection_, 0);
    Commit(worker);
    EXPECT_EQ(CompletionKind(Next(worker, peer).kind), CompletionKind::kEstablished);
  }
  // A message of the peer, answered by the owner.
  void Exchange(Worker& worker, RawPeer& peer) {
    const size_t answers = peer.received.size();
    peer.Receive();
    peer.Send("ping");
    EXPECT_EQ(CompletionKind(Next(worker, peer).kind), CompletionKind::kReceive);
    writer_->Send(connection_, 2048, 4);
    writer_->Receive(connection_, 0, 1024);
    writer_->Acknowledge(read_);
    Commit(worker);
    EXPECT_EQ(CompletionKind(Next(worker, peer).kind), CompletionKind::kSend);
    EXPECT_TRUE(Pump([&] { peer.Turn(); }, [&] { return peer.received.size() == answers + 1; }));
  }

  // The first time that the crash point is passed; `point_` is empty from then on.
  static void DoAt(std::string_view point, std::function<void()> what) {
    point_ = point;
    what_ = std::move(what);
    SetCrashPointHandler([](const char* name) {
      if (name != point_) return;
      point_ = "";
      what_();
    });
  }
  // Does it, again and again, until it comes to the crash point.
  void KillAt(std::string_view point, const std::function<void()>& turn) {
    DoAt(point, [] { throw Killed(); });
    bool killed = false;
    const auto attempt = [&] {
      try {
        turn();
      } catch (const Killed&) {
        killed = true;
      }
    };
    EXPECT_TRUE(Pump(attempt, [&] { return killed; }));
    SetCrashPointHandler([](const char*) {});
    ASSERT_TRUE(killed);
  }
  void AskForHandoff(uint32_t to) {
    engine_->succession().Handoff(0, to,
                                  [this](const absl::Status& status, double) { moved_ = status; });
  }
  // The owner of the first epoch.
  void ReleaseAsAsked(Worker& owner) {
    ASSERT_EQ(arena_->shard(0).owner.release_requested, 1u);
    writer_->Release().Publish();
    ASSERT_EQ(owner.Drive(0), 0);
    ASSERT_EQ(owner.Release(0, 1), 0);
  }
  void TakeOver(Worker& heir) {
    ASSERT_TRUE(Pump([&] { ASSERT_EQ(heir.Attend(), 0); },
                     [&] { return arena_->shard(0).owner.owner_worker_id == heir.id(); }));
    Begin(heir);
  }
  // In the handler of the next completion.
  void Die(Worker& worker) {
    arena::StoreRelaxed(arena_->bank(0, epoch()).handling, read_ + 1);
    worker.Die();
  }
  // A message that is not looked at yet.
  void GetMessage(Worker& worker, RawPeer& peer, std::string_view text) {
    peer.Send(text);
    Next(worker, peer);
    --read_;
  }

  void OnEvent(std::string_view kind, const std::string& message, uint64_t, int, int) override {
    if (kind == "connection_poisoned") poisonings_.push_back(message);
    if (kind == "ownership_broken" || kind == "not_poisoned") news_.push_back(message);
    if (kind == "ownership_ended" || kind == "shard_moved") {
      events_.push_back(message.substr(0, message.find(" goes on")));
    }
  }
  void OnFenced(uint64_t) override { FAIL(); }
  void OnDeviceLost(const absl::Status& why) override {
    EXPECT_TRUE(may_be_lost_) << why;
    lost_ = why;
  }

  const verbs::testing::Fabric fabric_ = verbs::testing::FabricUnderTest();
  std::optional<arena::Arena> arena_;
  std::unique_ptr<UnforkedDevice> device_;
  bool may_be_lost_ = false;
  absl::Status lost_;
  std::unique_ptr<NativeEngine> engine_;
  std::array<std::unique_ptr<Worker>, 4> workers_;
  std::optional<CommitWriter> writer_;
  uint64_t read_ = 0;
  uint32_t connection_ = 0;
  std::vector<std::string> events_;
  std::vector<std::string> poisonings_;
  std::vector<std::string> news_;
  absl::Status moved_ = absl::UnknownError("not yet");  // the shard that was asked for
  static inline std::string_view point_;
  static inline std::function<void()> what_;
};

TEST_F(NativeEngineTest, shouldRefuseADeviceThatDoesNotSurviveAFork) {
  const std::unique_ptr<verbs::Device> soft = verbs::testing::OpenDevice(fabric_).value();
  if (soft->CheckForkable().ok()) GTEST_SKIP() << "this device survives a fork";
  EXPECT_EQ(NativeEngine::Create(&*arena_, soft.get(), nullptr, {}).status(),
            soft->CheckForkable());
}

TEST_F(NativeEngineTest, shouldGiveAShardToTheFirstWorkerThatIsReady) {
  EXPECT_EQ(owner(), 0u);
  EXPECT_EQ(engine_->succession().waiting_reason(0), "no worker is ready");
  Worker& worker = Start(0);
  EXPECT_EQ(epoch(), 0u);  // it may take it, and has not
  ASSERT_EQ(worker.Attend(), 0);
  EXPECT_EQ(owner(), worker.id());
  EXPECT_EQ(epoch(), 1u);
  Begin(worker);
  EXPECT_THAT(events_, ElementsAre("shard 0 epoch 1: worker 1"));
}

TEST_F(NativeEngineTest, shouldSayWhyItsWorkersCannotRun) {
  const std::string line = NewsLine(kWorkerFailed, "/kv.so: no such file");
  ASSERT_GT(write(engine_->InheritanceOf(0, 1).news, line.data(), line.size()), 0);
  engine_->Turn();
  engine_->Turn();
  EXPECT_EQ(engine_->succession().waiting_reason(0),
            "no worker is ready; the last one could not be run: /kv.so: no such file");
  ASSERT_EQ(Start(0).Attend(), 0);
  Bury(0);
  EXPECT_EQ(engine_->succession().waiting_reason(0), "no worker is ready");
}

// It goes on to control, which closes a session whose messages do not parse.
TEST_F(NativeEngineTest, shouldTakeNoNewsThatIsNotUtf8) {
  const std::string line = NewsLine(kWorkerFailed, "/\xff\xc3.so: \xe2\x82\xac");
  ASSERT_GT(write(engine_->InheritanceOf(0, 1).news, line.data(), line.size()), 0);
  engine_->Turn();
  engine_->Turn();
  EXPECT_EQ(engine_->succession().waiting_reason(0),
            "no worker is ready; the last one could not be run: /??.so: \xe2\x82\xac");
}

TEST_F(NativeEngineTest, shouldLeaveTheShardsOfAnOwnerThatLives) {
  Worker& owner_of_it = StartOwner();
  Worker& heir = Start(1);
  EXPECT_EQ(engine_->succession().owner(0).heir_id, heir.id());
  for (int i = 0; i < 3; ++i) ASSERT_EQ(heir.Attend(), 0);
  EXPECT_EQ(owner(), owner_of_it.id());
}

// The keeper does nothing in this.
TEST_F(NativeEngineTest, shouldLetTheHeirTakeTheShardsOfADeadOwner) {
  RawPeer peer;
  Worker& first = StartOwner(peer);
  Exchange(first, peer);
  Worker& heir = StartAttending(1);
  first.Die();
  ASSERT_TRUE(Pump([&] { ASSERT_EQ(heir.Attend(), 0); }, [&] { return owner() == heir.id(); }));
  EXPECT_EQ(epoch(), 2u);
  Begin(heir);
  Exchange(heir, peer);
  EXPECT_FALSE(peer.disconnected);
  // The heir counts on from what the dead owner had counted.
  EXPECT_EQ(engine_->counters(0).bytes_sent, 8u);
  EXPECT_EQ(engine_->counters(0).bytes_received, 8u);
  EXPECT_THAT(events_,
              ElementsAre("shard 0 epoch 1: worker 1", "shard 0 epoch 1 of worker 1 ended: crash",
                          "shard 0 epoch 2: worker 2"));
  EXPECT_EQ(engine_->succession().failover_blackout(0).count(), 1u);
}

// What the dead owner had published counts, and nothing else.
TEST_F(NativeEngineTest, shouldApplyWhatADeadOwnerHadPublished) {
  RawPeer peer;
  Worker& first = StartOwner(peer);
  Worker& heir = StartAttending(1);
  peer.Receive();
  writer_->Send(connection_, 2048, 4);
  writer_->Publish();
  first.Die();
  ASSERT_TRUE(Pump([&] { ASSERT_EQ(heir.Attend(), 0); }, [&] { return owner() == heir.id(); }));
  Begin(heir);
  EXPECT_EQ(engine_->succession().last_report(0).recovered, 1u);
  EXPECT_EQ(CompletionKind(Next(heir, peer).kind), CompletionKind::kSend);
  EXPECT_TRUE(Pump([&] { peer.Turn(); }, [&] { return peer.received.size() == 1; }));
}

TEST_F(NativeEngineTest, shouldHandOverToTheSuccessorThatIsAskedFor) {
  RawPeer peer;
  Worker& first = StartOwner(peer);
  Worker& second = Start(1);
  Start(2);
  AskForHandoff(1);
  ASSERT_NO_FATAL_FAILURE(ReleaseAsAsked(first));
  ASSERT_EQ(second.Attend(), 0);
  EXPECT_EQ(owner(), second.id());
  EXPECT_EQ(moved_.code(), absl::StatusCode::kUnknown);  // until it serves
  Begin(second);
  EXPECT_TRUE(moved_.ok()) << moved_;
  EXPECT_EQ(engine_->succession().handoff_blackout(0).count(), 1u);
  Exchange(second, peer);
}

// The owner has a shard, another worker is its heir, and a third is to get it: the owner releases,
// and the heir looks, in the middle of what somebody does.
class FormerHeirTest : public NativeEngineTest {
 protected:
  static constexpr uint32_t kSuccessor = 1, kHeir = 2;
  void SetUp() override {
    NativeEngineTest::SetUp();
    StartOwner();
    for (const uint32_t slot : {kSuccessor, kHeir}) ASSERT_EQ(Start(slot).Attend(), 0);
    ASSERT_EQ(engine_->succession().owner(0).heir_id, workers_[kHeir]->id());
  }
  void ExpectTheSuccessorToGoOn() {
    ASSERT_EQ(point_, "");
    ASSERT_EQ(workers_[kHeir]->Attend(), 0);
    ASSERT_EQ(workers_[kSuccessor]->Attend(), 0);
    ASSERT_EQ(owner(), workers_[kSuccessor]->id());
    Begin(*workers_[kSuccessor]);
    EXPECT_TRUE(moved_.ok()) << moved_;
  }
};

TEST_F(FormerHeirTest, shouldNotClaimWhatIsReleasedWhileTheKeeperAsksForIt) {
  DoAt("succession-release-asked", [this] {
    ReleaseAsAsked(*workers_[0]);
    ASSERT_EQ(workers_[kHeir]->Attend(), 0);
  });
  AskForHandoff(kSuccessor);
  ExpectTheSuccessorToGoOn();
}

TEST_F(FormerHeirTest, shouldNotClaimWhatIsReleasedWhileItLooks) {
  DoAt("native-owner-seen", [this] {
    AskForHandoff(kSuccessor);
    ReleaseAsAsked(*workers_[0]);
  });
  ++arena_->header().ownership_changes;
  ASSERT_EQ(workers_[kHeir]->Attend(), 0);
  ExpectTheSuccessorToGoOn();
}

// Its memory is a copy, and the queues are not: there would be two drivers.
TEST_F(NativeEngineTest, shouldRefuseEveryCallOfAProcessThatAWorkerHasForked) {
  Worker& worker = StartOwner();
  EXPECT_GE(worker.host().socket, -1);
  const pid_t child = fork();
  if (child == 0) {
    BatonNativeHost& host = worker.host();
    const bool refused =
        host.attend(host.context) == -EPERM && host.adopt(host.context, 0, 1) == -EPERM &&
        host.apply(host.context, 0) == -EPERM && host.poll(host.context, 0) == -EPERM &&
        host.request_notification(host.context, 0) == -EPERM &&
        host.release(host.context, 0, 1) == -EPERM;
    const bool told =
        std::string(host.last_error(host.context)).find("forked") != std::string::npos;
    _exit(refused && told && host.socket == -1 ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  RawPeer peer;
  Connect(worker, peer);
  Exchange(worker, peer);
}

// It does not serve the shard, and would give it back again and again.
TEST_F(NativeEngineTest, shouldGiveNothingToWhoGaveItBackUnasked) {
  Worker& first = StartAttending(0);
  writer_->Begin(epoch());
  writer_->Release().Publish();
  ASSERT_EQ(first.Drive(0), 0);
  ASSERT_EQ(first.Release(0, 1), 0);
  engine_->Turn();
  EXPECT_EQ(owner(), 0u);
  EXPECT_EQ(engine_->succession().waiting_reason(0), "no worker is ready");
  Worker& second = StartAttending(1);
  EXPECT_EQ(owner(), second.id());
  engine_->succession().SetReady(0);  // it asks for shards again
  EXPECT_EQ(engine_->succession().owner(0).heir_id, first.id());
}

TEST_F(NativeEngineTest, shouldGiveAShardWhoseClaimantDiedToAnother) {
  Start(0).Die();  // it was ready, and may take the shard
  Bury(0);
  EXPECT_EQ(engine_->succession().owner(0).slot, arena::kNobody);
  Worker& other = StartAttending(1);
  EXPECT_EQ(owner(), other.id());
}

TEST_F(NativeEngineTest, shouldKeepAShardForWhoComesWhenAllAreDead) {
  RawPeer peer;
  Worker& first = StartOwner(peer);
  first.Die();
  Bury(0);
  EXPECT_EQ(engine_->succession().waiting_reason(0), "no worker is ready");
  Worker& next = StartAttending(1);
  Begin(next);
  Exchange(next, peer);
}

TEST_F(NativeEngineTest, shouldNameNobodyBeforeADeathWithEffectsOutsideIsProven) {
  MakeEngine({.outside_effects = true});
  Worker& first = StartOwner();
  Worker& second = Start(1);
  // Not even of one that was to be handed over.
  AskForHandoff(1);
  first.Die();
  for (int i = 0; i < 3; ++i) ASSERT_EQ(second.Attend(), 0);
  EXPECT_EQ(owner(), first.id());
  Bury(0);
  ASSERT_EQ(second.Attend(), 0);
  EXPECT_EQ(owner(), second.id());
}

// Named before the release is asked for, as without such effects.
TEST_F(NativeEngineTest, shouldLetTheSuccessorClaimAReleaseWithEffectsOutside) {
  MakeEngine({.outside_effects = true});
  Worker& first = StartOwner();
  Worker& second = Start(1);
  EXPECT_EQ(arena_->succession(0).heir, 0u);
  DoAt("succession-release-asked", [&] {
    ReleaseAsAsked(first);
    ASSERT_EQ(second.Attend(), 0);
    EXPECT_EQ(arena_->shard(0).owner.owner_worker_id, second.id());
  });
  AskForHandoff(1);
  EXPECT_EQ(point_, "");
}

// ---- A change of owner, in the middle of which somebody dies.

// It has published that it gives its shard up, as it was asked to, and its heir watches.
class ReleasingOwnerTest : public NativeEngineTest {
 protected:
  void SetUp() override {
    NativeEngineTest::SetUp();
    StartOwner(peer_);
    ASSERT_EQ(Start(1).Attend(), 0);
    AskForHandoff(1);
    ASSERT_EQ(workers_[1]->Attend(), 0);
    writer_->Release().Publish();
  }
  void DieBeforeItHandsOver() {
    Worker& first = *workers_[0];
    ASSERT_EQ(first.Drive(0), 0);
    ASSERT_NO_FATAL_FAILURE(KillAt("native-before-hand-over", [&] { first.Release(0, 1); }));
    begun_ns_ = arena_->succession(0).change_begun_ns;
    EXPECT_NE(begun_ns_, 0u);
    first.Die();
  }
  void ExpectAReleaseAndNoDeath() {
    Worker& heir = *workers_[1];
    ASSERT_NO_FATAL_FAILURE(TakeOver(heir));
    EXPECT_EQ(epoch(), 2u);
    EXPECT_EQ(LoadDeaths(*arena_, 0).deaths, 0u);
    EXPECT_THAT(events_, ElementsAre("shard 0 epoch 1: worker 1",
                                     "shard 0 epoch 1 of worker 1 ended: handoff",
                                     "shard 0 epoch 2: worker 2"));
    EXPECT_EQ(engine_->succession().handoff_blackout(0).count(), 1u);
    EXPECT_EQ(engine_->succession().failover_blackout(0).count(), 0u);
    EXPECT_TRUE(moved_.ok()) << moved_;
    Exchange(heir, peer_);
    EXPECT_FALSE(peer_.disconnected);
  }

  RawPeer peer_;
  uint64_t begun_ns_ = 0;
};

TEST_F(ReleasingOwnerTest, shouldCountAsReleasedOnceThatIsPublished) {
  workers_[0]->Die();
  ExpectAReleaseAndNoDeath();
}

TEST_F(ReleasingOwnerTest, shouldCountAsReleasedWhenItDiesBeforeTheWordMoves) {
  ASSERT_NO_FATAL_FAILURE(DieBeforeItHandsOver());
  ExpectAReleaseAndNoDeath();
  EXPECT_EQ(arena_->succession(0).change_begun_ns, begun_ns_);
}

// HandOver has taken its number out of the record, and has not moved the word.
TEST_F(ReleasingOwnerTest, shouldCountAsReleasedWhenItsNumberIsGoneAndTheWordIsNot) {
  ASSERT_NO_FATAL_FAILURE(DieBeforeItHandsOver());
  arena_->shard(0).owner.release_requested = 0;
  arena_->shard(0).owner.owner_worker_id = 0;
  ExpectAReleaseAndNoDeath();
  EXPECT_EQ(arena_->succession(0).change_begun_ns, begun_ns_);
}

// An owner dies with two transactions published, and then its heir in the middle of taking over.
class SecondClaimantTest : public NativeEngineTest {
 protected:
  void SetUp() override {
    NativeEngineTest::SetUp();
    Worker& first = StartOwner(peer_);
    for (uint32_t slot = 1; slot < 3; ++slot) ASSERT_EQ(Start(slot).Attend(), 0);
    peer_.Receive();
    peer_.Receive();
    // The second, too, is written from what is applied: it stages the first one's send again.
    writer_->Send(connection_, 2048, 4);
    writer_->Publish();
    writer_->Send(connection_, 2048, 4);
    writer_->Send(connection_, 2048, 4);
    writer_->Publish();
    first.Die();
  }
  void KillTheHeirAt(const char* point) {
    const auto slot = static_cast<uint32_t>(arena_->succession(0).heir - 1);
    Worker& heir = *workers_[slot];
    ASSERT_NO_FATAL_FAILURE(KillAt(point, [&] { heir.Attend(); }));
    change_ = arena_->succession(0);
    EXPECT_EQ(change_.change_epoch, 1u);
    heir.Die();
    Bury(slot);
    last_ = workers_[slot == 1 ? 2 : 1].get();
  }
  // Expects the same as after one heir that began when the first one did.
  void ExpectOneChange() {
    ASSERT_NO_FATAL_FAILURE(TakeOver(*last_));
    EXPECT_EQ(epoch(), 2u);
    const arena::SuccessionRecord& change = arena_->succession(0);
    EXPECT_EQ(change.change_begun_ns, change_.change_begun_ns);
    EXPECT_EQ(change.former_worker_id, 1u);
    EXPECT_EQ(arena::ChangeCause(change.cause), arena::ChangeCause::kDeath);
    EXPECT_EQ(engine_->succession().last_report(0).recovered, 2u);
    EXPECT_EQ(engine_->succession().failover_blackout(0).count(), 1u);
    EXPECT_EQ(LoadDeaths(*arena_, 0).deaths, 1u);
    EXPECT_EQ(arena_->shard(0).owner.cut_epoch, 1u);
    // Its commits and theirs, each once.
    EXPECT_EQ(arena_->connection(connection_).send.committed, 2u);
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(CompletionKind(Next(*last_, peer_).kind), CompletionKind::kSend);
    }
    EXPECT_TRUE(Pump([&] { peer_.Turn(); }, [&] { return peer_.received.size() == 2; }));
  }

  RawPeer peer_;
  arena::SuccessionRecord change_ = {};  // as the heir that died has left it
  Worker* last_ = nullptr;
};

TEST_F(SecondClaimantTest, shouldGoOnBetweenTwoTransactions) {
  ASSERT_NO_FATAL_FAILURE(KillTheHeirAt("change-rest-applied"));
  EXPECT_EQ(change_.recovered, 1u);
  ExpectOneChange();
}

TEST_F(SecondClaimantTest, shouldGoOnWhenAllIsApplied) {
  ASSERT_NO_FATAL_FAILURE(KillTheHeirAt("native-before-taking"));
  ExpectOneChange();
}

// Everything of the next epoch was stored, except its word.
TEST_F(SecondClaimantTest, shouldGoOnWhenTheNextEpochHasBegunButForItsWord) {
  ASSERT_NO_FATAL_FAILURE(KillTheHeirAt("native-before-taking"));
  arena::ShardRecord& shard = arena_->shard(0);
  const uint64_t cut = arena::CursorIndex(shard.commit_head);
  shard.owner.cut_tail = cut;
  shard.owner.cut_epoch = 1;
  arena_->bank(0, 2).tail = shard.commit_head = arena::PackCursor(2, 0);
  ExpectOneChange();
  EXPECT_EQ(shard.owner.cut_tail, cut);
}

// ---- A shard that is not its worker's any more.

// Another process has claimed the shard, and the worker has not seen it yet.
class LostShardTest : public NativeEngineTest {
 protected:
  void SetUp() override {
    NativeEngineTest::SetUp();
    owner_ = &StartOwner(peer_);
  }
  void Lose() {
    ours_ = word();
    claimed_ = arena::PackOwnership(1, arena::kClaim | 1, 7);
    word() = claimed_;
  }
  uint64_t& word() { return arena_->shard(0).owner.ownership; }
  void Settle(const std::function<bool()>& done) {
    ASSERT_TRUE(Pump(
        [&] {
          engine_->Turn();
          peer_.Turn();
        },
        done));
  }

  RawPeer peer_;
  Worker* owner_ = nullptr;
  uint64_t ours_ = 0, claimed_ = 0;  // the word, before and after
};

TEST_F(LostShardTest, shouldHaveNothingApplied) {
  const uint64_t head = arena_->shard(0).commit_head;
  writer_->Send(connection_, 2048, 4);
  writer_->Publish();
  Lose();
  ASSERT_EQ(owner_->Apply(0), 0);
  EXPECT_EQ(arena_->shard(0).commit_head, head);
  EXPECT_EQ(arena_->connection(connection_).send.committed, 0u);
  ASSERT_EQ(owner_->Release(0, 1), 0);
  EXPECT_EQ(arena_->shard(0).commit_head, head);
  EXPECT_EQ(word(), claimed_);
}

TEST_F(LostShardTest, shouldHaveNothingPolled) {
  peer_.Send("ping");
  Settle([&] { return !peer_.sent.empty(); });
  const uint64_t tail = arena_->shard(0).completion_tail;
  Lose();
  ASSERT_EQ(owner_->Poll(0), 0);
  EXPECT_EQ(arena_->shard(0).completion_tail, tail);
  // It is there for who has the shard.
  word() = ours_;
  ASSERT_EQ(owner_->Poll(0), 0);
  EXPECT_EQ(arena_->shard(0).completion_tail, tail + 1);
}

// A completion queue that counts how often somebody asks for its notification.
class CountingQueue final : public verbs::CompletionQueue {
 public:
  explicit CountingQueue(std::unique_ptr<verbs::CompletionQueue> inner)
      : inner_(std::move(inner)) {}

  absl::StatusOr<int> Poll(absl::Span<verbs::Completion> completions) override {
    return inner_->Poll(completions);
  }
  absl::StatusOr<int> Take(absl::Span<verbs::Completion> taken) override {
    return inner_->Take(taken);
  }
  void Read(absl::Span<const verbs::Completion> taken, verbs::Completion* completions) override {
    inner_->Read(taken, completions);
  }
  absl::Status RequestNotification() override {
    ++requests;
    return inner_->RequestNotification();
  }
  void ForgetNotification() override { inner_->ForgetNotification(); }

  int requests = 0;

 private:
  const std::unique_ptr<verbs::CompletionQueue> inner_;
};

// The process that has claimed the shard polls the queue and sleeps on its notifications. The
// former owner must not request one.
TEST_F(LostShardTest, shouldHaveNoNotificationRequested) {
  const std::shared_ptr<driver::DeviceObjects> objects = engine_->InheritanceOf(0, 1).objects;
  std::unique_ptr<verbs::CompletionQueue>& inherited = objects->completion_queues[0];
  auto counting = std::make_unique<CountingQueue>(std::move(inherited));
  const CountingQueue& queue = *counting;
  inherited = std::move(counting);
  Lose();
  ASSERT_EQ(owner_->RequestNotification(0), 0);
  EXPECT_EQ(queue.requests, 0);
  word() = ours_;
  ASSERT_EQ(owner_->RequestNotification(0), 0);
  EXPECT_EQ(queue.requests, 1);
}

TEST_F(LostShardTest, shouldHaveNoNoticeTaken) {
  device_->requests = 1;
  engine_->Turn();
  const uint64_t tail = arena_->shard(0).completion_tail;
  Lose();
  ASSERT_EQ(owner_->Attend(), 0);
  EXPECT_EQ(arena_->shard(0).completion_tail, tail);
  EXPECT_EQ(arena_->notices(0).tail - arena_->notices(0).head, 1u);
  word() = ours_;
  ASSERT_EQ(owner_->Attend(), 0);
  EXPECT_EQ(arena_->shard(0).completion_tail, tail + 1);
}

TEST_F(LostShardTest, shouldNotBeGivenAway) {
  DoAt("native-before-hand-over", [this] { Lose(); });
  writer_->Release().Publish();
  ASSERT_EQ(owner_->Release(0, 1), 0);
  EXPECT_EQ(point_, "");
  EXPECT_EQ(word(), claimed_);
  EXPECT_EQ(arena_->shard(0).owner.owner_worker_id, owner_->id());
}

// Its claimant was taken for dead in the last moment.
TEST_F(NativeEngineTest, shouldNotTakeAShardThatAnotherClaimsInTheLastMoment) {
  Worker& claimant = Start(0);
  const uint64_t claimed = arena::PackOwnership(0, arena::kClaim | 3, 7);
  DoAt("change-epoch-prepared", [&] { arena_->shard(0).owner.ownership = claimed; });
  ASSERT_EQ(claimant.Attend(), 0);
  EXPECT_EQ(point_, "");
  EXPECT_EQ(arena_->shard(0).owner.ownership, claimed);
  engine_->Turn();
  EXPECT_THAT(news_, Contains(HasSubstr("is not claimed any more")));
}

// The keeper has read which epoch is to end, and the owner dies.
TEST_F(FormerHeirTest, shouldNotAskAnOwnerWhoseEpochIsNotMeant) {
  DoAt("succession-before-asking", [this] {
    workers_[0]->Die();
    ASSERT_EQ(workers_[kSuccessor]->Attend(), 0);
    ASSERT_EQ(owner(), workers_[kSuccessor]->id());
  });
  AskForHandoff(kSuccessor);
  ASSERT_EQ(point_, "");
  EXPECT_NE(arena_->shard(0).owner.release_requested, epoch());
  Begin(*workers_[kSuccessor]);
  EXPECT_TRUE(moved_.ok()) << moved_;
}

// ---- Budgets.

// Peers ask for connections faster than the worker can hear of them.
TEST_F(NativeEngineTest, shouldHearOfSoManyConnectionsInATurn) {
  constexpr uint32_t kPerTurn = 64, kMany = 200;
  Make(driver::testing::TestShape(1, kMany));
  Worker& worker = StartAttending(0);
  device_->requests = kMany;
  while (device_->requests != 0) engine_->Turn();
  ASSERT_EQ(worker.Attend(), 0);
  EXPECT_EQ(arena_->shard(0).completion_tail, kPerTurn);
  // Before it sleeps, too; what is left wakes it.
  ASSERT_EQ(worker.RequestNotification(0), 0);
  ASSERT_EQ(worker.Attend(), 0);
  EXPECT_EQ(arena_->shard(0).completion_tail, 2 * kPerTurn);
  pollfd entry = {worker.event_fd(), POLLIN, 0};
  EXPECT_EQ(poll(&entry, 1, 0), 1);
  ASSERT_EQ(worker.Attend(), 0);
  EXPECT_EQ(arena_->shard(0).completion_tail, 3 * kPerTurn);
  ASSERT_EQ(worker.Attend(), 0);
  EXPECT_EQ(arena_->shard(0).completion_tail, kMany);
}

// ---- Waking.

class TwoShardsTest : public NativeEngineTest {
 protected:
  void SetUp() override { Make(/*shards=*/2); }
  // Names an heir, and does not announce it.
  void NameHeir(uint32_t shard, uint32_t slot, bool wake) {
    arena::StoreRelease(arena_->succession(shard).heir, uint64_t{slot} + 1);
    if (wake) eventfd_write(engine_->InheritanceOf(slot, slot + 1).wakes[slot], 1);
  }
  // All that the keeper gives it.
  void TakeAll(Worker& worker) {
    for (uint32_t i = 0; i < arena_->shape().shards; ++i) ASSERT_EQ(worker.Attend(), 0);
  }
  void TakeAway(uint32_t shard) {
    arena_->shard(shard).owner.ownership = arena::PackOwnership(1, arena::kNobody);
  }
  bool Owns(uint32_t slot, uint32_t shard) {
    return arena::OwnershipSlot(arena_->shard(shard).owner.ownership) == slot;
  }
};

// One that never sleeps does not read at each turn what it is woken with, and reads it all the
// same.
TEST_F(TwoShardsTest, shouldTakeWhatABusyOwnerIsNamedHeirOf) {
  Worker& busy = Start(0);
  TakeAll(busy);
  ASSERT_TRUE(Owns(0, 0) && Owns(0, 1));
  TakeAway(1);
  ASSERT_EQ(busy.Release(1, 1), 0);
  ASSERT_EQ(busy.Attend(), 0);
  const auto turns_until_it_owns = [&] {
    for (int turns = 1; turns <= 3000; ++turns) {
      EXPECT_EQ(busy.Attend(), 0);
      if (Owns(0, 1)) return turns;
    }
    return 0;
  };
  NameHeir(1, 0, /*wake=*/false);
  EXPECT_EQ(turns_until_it_owns(), 0);
  NameHeir(1, 0, /*wake=*/true);
  const int turns = turns_until_it_owns();
  EXPECT_GT(turns, 0);
  EXPECT_LE(turns, 1024);
}

// Another worker of the service has written what cannot be.
TEST_F(TwoShardsTest, shouldNotTakeWhatItHasNotLeft) {
  Worker& owner = Start(0);
  TakeAll(owner);
  ASSERT_TRUE(Owns(0, 1));
  NameHeir(1, 0, /*wake=*/false);
  TakeAway(1);
  ++arena_->header().ownership_changes;
  ASSERT_EQ(owner.Attend(), 0);
  arena_->shard(1).owner.ownership = arena::PackOwnership(1, arena::kClaim | 0);
  ++arena_->header().ownership_changes;
  ASSERT_EQ(owner.Attend(), 0);
  EXPECT_FALSE(Owns(0, 1));
  ASSERT_EQ(owner.Release(1, 1), 0);
  ++arena_->header().ownership_changes;
  ASSERT_EQ(owner.Attend(), 0);
  EXPECT_TRUE(Owns(0, 1));
}

// ---- Many shards of one dead owner.

class InheritedShardsTest : public TwoShardsTest {
 protected:
  static constexpr uint32_t kShards = 3;
  void SetUp() override {
    Make(kShards);
    TakeAll(Start(0));
    for (uint32_t shard = 0; shard < kShards; ++shard) ASSERT_TRUE(Owns(0, shard));
    ASSERT_EQ(Start(1).Attend(), 0);
    // The driver of many shards counts them so.
    arena_->shard(1).connections = 3;
    arena_->shard(2).connections = 7;
  }
  // Until the heir has something of the dead owner's. Returns how much.
  uint32_t TakeSome() {
    const auto owned = [this] {
      return static_cast<uint32_t>(Owns(1, 0)) + Owns(1, 1) + Owns(1, 2);
    };
    const uint32_t before = owned();
    EXPECT_TRUE(
        Pump([&] { ASSERT_EQ(workers_[1]->Attend(), 0); }, [&] { return owned() != before; }));
    return owned() - before;
  }
};

TEST_F(InheritedShardsTest, shouldBeTakenOneByOneAndTheOneWithTheMostConnectionsFirst) {
  workers_[0]->Die();
  EXPECT_EQ(TakeSome(), 1u);
  EXPECT_TRUE(Owns(1, 2));
  for (const uint32_t shard : {0, 1}) {
    EXPECT_TRUE(Owns(arena::kClaim | 1, shard));            // nobody else's
    EXPECT_EQ(arena_->succession(shard).change_epoch, 1u);  // its blackout has begun
  }
  EXPECT_EQ(TakeSome(), 1u);
  EXPECT_TRUE(Owns(1, 1));
  EXPECT_EQ(TakeSome(), 1u);
  EXPECT_TRUE(Owns(1, 0));
}

// The heir dies between two.
TEST_F(InheritedShardsTest, shouldBeTakenByTheHeirOfAClaimantThatDies) {
  workers_[0]->Die();
  EXPECT_EQ(TakeSome(), 1u);
  ASSERT_EQ(Start(2).Attend(), 0);  // the next heir, of what is taken and of what is claimed
  workers_[1]->Die();
  EXPECT_TRUE(Pump([&] { ASSERT_EQ(workers_[2]->Attend(), 0); },
                   [&] { return Owns(2, 0) && Owns(2, 1) && Owns(2, 2); }));
}

// The owner has committed that a connection of the first is accepted into the second. Who had not
// adopted both could not do it.
TEST_F(InheritedShardsTest, shouldBeTakenTogetherIfAConnectionIsAcceptedIntoAnother) {
  Worker& first = *workers_[0];
  Begin(first);
  RawPeer peer;
  peer.Connect(engine_->Listen({fabric_.host, 0}).value().port, "");
  connection_ = Next(first, peer).connection;
  arena_->shard(1).connections = 3;
  writer_->Accept(connection_, 1).Acknowledge(read_).Publish();
  first.Die();
  EXPECT_EQ(TakeSome(), 1u);
  EXPECT_TRUE(Owns(1, 2));
  EXPECT_EQ(TakeSome(), 2u);
  const auto turn = [&] {
    engine_->Turn();
    ASSERT_EQ(workers_[1]->Attend(), 0);
    ASSERT_EQ(workers_[1]->Drive(1), 0);
    peer.Turn();
  };
  const arena::ConnectionRecord& record = arena_->connection(connection_);
  EXPECT_TRUE(Pump(turn, [&] { return record.was_established != 0; }));
  EXPECT_EQ(record.shard, 1u);
}

// Metrics are made of them, and a counter of Prometheus never falls.
TEST_F(NativeEngineTest, shouldCountWhatConnectionsDidThatHaveEnded) {
  Worker& worker = StartOwner();
  for (uint64_t ended = 0; ended < 3; ++ended) {
    RawPeer peer;
    Connect(worker, peer);
    Exchange(worker, peer);
    const driver::ShardCounters live = engine_->counters(0);
    EXPECT_EQ(live.sends_posted, ended + 1);
    EXPECT_EQ(live.receives_posted, 2 * (ended + 1));
    EXPECT_EQ(live.sends_posted - live.sends_completed, 0u);
    EXPECT_EQ(live.receives_posted - live.receives_completed, 1u);
    peer.Disconnect();
    while (CompletionKind(Next(worker, peer).kind) != CompletionKind::kDisconnected) {
    }
    for (bool freed = false; !freed; freed = engine_->connection_count() == 0) {
      EXPECT_EQ(engine_->counters(0).receives_posted, 2 * (ended + 1));
      writer_->Acknowledge(read_);
      Commit(worker);
    }
    const driver::ShardCounters over = engine_->counters(0);
    EXPECT_EQ(over.sends_posted, ended + 1);
    EXPECT_EQ(over.receives_posted, 2 * (ended + 1));
    EXPECT_EQ(over.receives_posted - over.receives_completed, 0u);
    EXPECT_EQ(over.bytes_sent, 4 * (ended + 1));
    EXPECT_EQ(over.bytes_received, 4 * (ended + 1));
  }
}

// ---- Poison.

// Every owner dies of one message. The third death fails its connection, and the next owner goes on
// with the other.
TEST_F(NativeEngineTest, shouldFailAConnectionOnWhoseMessageOwnersDie) {
  Worker& first = StartOwner();
  RawPeer good, bad;
  Connect(first, good);
  const uint32_t good_connection = connection_;
  Connect(first, bad);
  GetMessage(first, bad, "poison");
  for (uint32_t slot = 0; slot < 3; ++slot) {
    Start(slot + 1);
    EXPECT_EQ(engine_->succession().poisoned_connections(0), 0u);
    Die(*workers_[slot]);
    TakeOver(*workers_[slot + 1]);
  }
  Worker& last = *workers_[3];
  EXPECT_EQ(engine_->succession().poisoned_connections(0), 1u);
  EXPECT_THAT(poisonings_, ElementsAre(HasSubstr(absl::StrCat("connection ", connection_,
                                                              " is failed: 3 workers (1, 2, 3)"))));
  ASSERT_TRUE(engine_->succession().last_report(0).poisoned.has_value());
  EXPECT_FALSE(engine_->succession().last_report(0).poisoned->guessed);
  arena::CompletionEntry entry = Next(last, bad);
  EXPECT_EQ(entry.connection, connection_);
  EXPECT_EQ(verbs::CompletionStatus(entry.status), verbs::CompletionStatus::kFlushError);
  while (CompletionKind(entry.kind) != CompletionKind::kDisconnected) entry = Next(last, bad);
  EXPECT_TRUE(Pump([&] { bad.Turn(); }, [&] { return bad.disconnected; }));
  connection_ = good_connection;
  Exchange(last, good);
  EXPECT_FALSE(good.disconnected);
}

TEST_F(NativeEngineTest, shouldBlameNothingForADeathThatAnOperatorAskedFor) {
  RawPeer peer;
  Worker& first = StartOwner(peer);
  GetMessage(first, peer, "fine");
  for (uint32_t slot = 0; slot < 3; ++slot) {
    Start(slot + 1);
    engine_->succession().PardonDeath(slot, slot + 1);
    Die(*workers_[slot]);
    TakeOver(*workers_[slot + 1]);
  }
  EXPECT_EQ(engine_->succession().poisoned_connections(0), 0u);
  EXPECT_EQ(LoadDeaths(*arena_, 0).deaths, 0u);
  EXPECT_EQ(CompletionKind(Next(*workers_[3], peer).kind), CompletionKind::kReceive);
  EXPECT_FALSE(peer.disconnected);
}

// Where heirs are killed while they count and poison: what their own heirs make of it.
class KilledHeirTest : public NativeEngineTest, public ::testing::WithParamInterface<const char*> {
 protected:
  // Returns the slot of the worker that has claimed the shard, or may claim it.
  uint32_t heir() {
    const uint32_t slot = arena::OwnershipSlot(arena_->shard(0).owner.ownership);
    return arena::IsClaim(slot) ? arena::ClaimantOrOwner(slot)
                                : static_cast<uint32_t>(arena_->succession(0).heir - 1);
  }
  // The heir takes over until it comes to the crash point, and is dead.
  void KillTheHeirAt(const char* point) {
    const uint32_t slot = this->heir();
    Worker& heir = *workers_[slot];
    ASSERT_NO_FATAL_FAILURE(KillAt(point, [&] { heir.Attend(); }));
    heir.Die();
    Bury(slot);
  }
};

TEST_P(KilledHeirTest, shouldCountEachDeathOnce) {
  RawPeer peer;
  Worker& first = StartOwner(peer);
  GetMessage(first, peer, "poison");
  for (uint32_t slot = 1; slot < 4; ++slot) Start(slot);
  Die(first);
  ASSERT_NO_FATAL_FAILURE(KillTheHeirAt(GetParam()));
  ASSERT_NO_FATAL_FAILURE(KillTheHeirAt("native-before-taking"));
  Worker& last = *workers_[heir()];
  TakeOver(last);
  EXPECT_EQ(LoadDeaths(*arena_, 0).deaths, 1u);
  EXPECT_EQ(LoadDeaths(*arena_, 0).run, 1u);
  EXPECT_EQ(epoch(), 2u);
  EXPECT_EQ(CompletionKind(Next(last, peer).kind), CompletionKind::kReceive);
}

// What it completes meanwhile the dead owner never saw, and did not die of.
TEST_F(KilledHeirTest, shouldCountWhatTheOwnerKnewOfAndNotItsFirstHeir) {
  RawPeer peer;
  Worker& first = StartOwner(peer);
  GetMessage(first, peer, "known");
  const uint64_t known = arena_->shard(0).completion_tail;
  writer_->Receive(connection_, 0, 1024);
  Commit(first);
  for (uint32_t slot = 1; slot < 3; ++slot) Start(slot);
  peer.Send("unknown");
  ASSERT_TRUE(Pump(
      [&] {
        engine_->Turn();
        peer.Turn();
      },
      [&] { return peer.sent.size() == 2; }));
  Die(first);
  ASSERT_NO_FATAL_FAILURE(KillTheHeirAt("driver-recovered"));
  ASSERT_GT(arena_->shard(0).completion_tail, known);
  TakeOver(*workers_[heir()]);
  EXPECT_EQ(LoadDeaths(*arena_, 0).deaths, 1u);
  EXPECT_EQ(LoadDeaths(*arena_, 0).logged, known);
}

// Its name stands in the record by then, and its death is no owner's.
TEST_F(KilledHeirTest, shouldNotCountAClaimantThatDiedBeforeItOwned) {
  MakeEngine({.poison_deaths = 1});
  RawPeer peer;
  Worker& first = StartOwner(peer);
  GetMessage(first, peer, "no poison");
  for (uint32_t slot = 1; slot < 3; ++slot) Start(slot);
  engine_->succession().PardonDeath(0, 1);
  Die(first);
  ASSERT_NO_FATAL_FAILURE(KillTheHeirAt("change-epoch-prepared"));
  Worker& last = *workers_[heir()];
  TakeOver(last);
  EXPECT_EQ(engine_->succession().poisoned_connections(0), 0u);
  uint64_t version = 0;
  const auto report = ReadShardReport(*arena_, 0, 1, &version);
  ASSERT_TRUE(report.has_value());
  EXPECT_EQ(report->former_worker_id, 1u);
  EXPECT_EQ(CompletionKind(Next(last, peer).kind), CompletionKind::kReceive);
}

// Another worker of the service has written over the word meanwhile: who has claimed the shard goes
// on without it.
TEST_F(TwoShardsTest, shouldGoOnWithoutAShardWhoseClaimIsNoMore) {
  Worker& owner = Start(0);
  DoAt("native-before-taking",
       [this] { arena_->shard(0).owner.ownership = arena::PackOwnership(7, arena::kClaim | 3); });
  ASSERT_EQ(owner.Attend(), 0);
  EXPECT_EQ(point_, "");
  EXPECT_FALSE(Owns(0, 0));
  EXPECT_TRUE(Owns(0, 1));
  EXPECT_EQ(arena_->shard(0).owner.owner_worker_id, 0u);
  ASSERT_EQ(owner.Attend(), 0);
  engine_->Turn();
  EXPECT_THAT(news_, Contains(HasSubstr("is not claimed any more")));
  // A claimant that is none is dead, too: the shard comes back.
  arena_->shard(0).owner.ownership = arena::PackOwnership(7, arena::kNobody);
  engine_->Turn();
  ASSERT_EQ(owner.Attend(), 0);
  EXPECT_TRUE(Owns(0, 0));
}

class HostileReportTest : public NativeEngineTest {
 protected:
  ReconciliationReport Report() {
    EndedOwnership ended;
    ended.epoch = 1;
    return Reconcile(*arena_, 0, {}, ended);
  }
};

TEST_F(HostileReportTest, shouldReportNothingOfALogThatCannotBe) {
  arena::ShardRecord& shard = arena_->shard(0);
  for (const auto& [acknowledged, tail] :
       {std::pair<uint64_t, uint64_t>(0, uint64_t{1} << 62), {9, 3}, {~uint64_t{0}, 1}}) {
    shard.acknowledged = acknowledged;
    shard.completion_tail = tail;
    const ReconciliationReport report = Report();
    EXPECT_EQ(report.completed_undelivered + report.delivered_uncommitted, 0u);
    EXPECT_THAT(report.requests, IsEmpty());
  }
}

TEST_F(HostileReportTest, shouldListNoRequestOfAConnectionThatDoesNotExist) {
  arena_->shard(0).completion_tail = 2;
  for (uint64_t i = 0; i < 2; ++i) {
    arena_->completion(0, i).kind = static_cast<uint8_t>(CompletionKind::kSend);
  }
  arena_->completion(0, 0).connection = ~0u;
  EXPECT_EQ(Report().requests.size(), 1u);
}

TEST_F(NativeEngineTest, shouldGoOnWhenWhatOwnersDiedOfCannotBe) {
  Worker& first = StartOwner();
  Worker& heir = Start(1);
  arena::DeathsRecord& deaths = arena_->deaths(0, 0);
  deaths.version = 1;
  deaths.blamed = uint64_t{1} << 60;
  first.Die();
  TakeOver(heir);
  engine_->Turn();
  EXPECT_THAT(news_, Contains(HasSubstr("what owners of shard 0 died of")));
  EXPECT_EQ(LoadDeaths(*arena_, 0).blamed, 0u);
  EXPECT_EQ(engine_->succession().poisoned_connections(0), 0u);
}

// The keeper looks at what workers have written before it uses it.
TEST_F(NativeEngineTest, shouldGiveAwayAShardThatBelongsToNoPossibleWorker) {
  StartOwner();
  for (const uint32_t slot : {arena_->shape().workers, arena::kClaim | 0x7ffeu, 0x7ffeu}) {
    uint64_t& word = arena_->shard(0).owner.ownership;
    word = arena::PackOwnership(arena::OwnershipEpoch(word), slot, arena::OwnershipSequence(word));
    EXPECT_EQ(engine_->succession().owner(0).slot, arena::kNobody);
    engine_->Turn();
    engine_->Turn();
    EXPECT_LT(arena::ClaimantOrOwner(arena::OwnershipSlot(word)), arena_->shape().workers);
  }
}

TEST_P(KilledHeirTest, shouldPoisonAsWhoBeganIt) {
  MakeEngine({.poison_deaths = 1});
  RawPeer peer;
  Worker& first = StartOwner(peer);
  GetMessage(first, peer, "poison");
  for (uint32_t slot = 1; slot < 3; ++slot) Start(slot);
  Die(first);
  ASSERT_NO_FATAL_FAILURE(KillTheHeirAt(GetParam()));
  Worker& last = *workers_[heir()];
  TakeOver(last);
  EXPECT_EQ(engine_->succession().poisoned_connections(0), 1u);
  uint64_t version = 0;
  const auto report = ReadShardReport(*arena_, 0, 1, &version);
  ASSERT_TRUE(report.has_value());
  ASSERT_TRUE(report->poisoned.has_value());
  EXPECT_EQ(report->poisoned->deaths, 1u);
  EXPECT_EQ(report->former_worker_id, 1u);
  const arena::CompletionEntry entry = Next(last, peer);
  EXPECT_EQ(verbs::CompletionStatus(entry.status), verbs::CompletionStatus::kFlushError);
  EXPECT_EQ(entry.flags, arena::kCompletionPoisoned);  // told as a failure, and not left out
}

INSTANTIATE_TEST_SUITE_P(At, KilledHeirTest,
                         ::testing::Values("native-claimed", "change-deaths-written",
                                           "change-death-counted", "change-reported",
                                           "native-before-taking", "change-epoch-prepared"),
                         [](const auto& point) {
                           std::string name = point.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// ---- Reports.

// The heir is quicker than the proof of the death.
TEST_F(NativeEngineTest, shouldTellAHangThatTheKeeperKilledForFromACrash) {
  StartOwner();
  for (uint32_t slot = 1; slot < 3; ++slot) ASSERT_EQ(Start(slot).Attend(), 0);
  engine_->succession().ExplainDeath(0, 1, "hang");
  for (uint32_t slot = 0; slot < 2; ++slot) {
    const auto heir = static_cast<uint32_t>(arena_->succession(0).heir - 1);
    workers_[engine_->succession().owner(0).slot]->Die();
    TakeOver(*workers_[heir]);
    EXPECT_EQ(engine_->succession().last_report(0).cause, slot == 0 ? "hang" : "crash");
    engine_->succession().WorkerEnded(slot == 0 ? 0 : heir, slot == 0 ? 1 : heir + 1, "crash");
    EXPECT_EQ(engine_->succession().last_report(0).cause, slot == 0 ? "hang" : "crash");
  }
}

TEST_F(NativeEngineTest, shouldReportWhatADeadOwnerLeftWhenItComesToIt) {
  Worker& first = StartOwner();
  RawPeer peer, slow;
  Connect(first, peer);
  const uint32_t busy = connection_;
  // Accepted, with a send behind that waits until it is established.
  slow.Connect(engine_->listeners()[0].port, "");
  const uint32_t waiting = Next(first, slow).connection;
  writer_->Send(waiting, 2048, 4);
  writer_->Accept(waiting, 0).Acknowledge(read_);
  Commit(first);
  // Two messages, of which it has read one; and a receive in flight.
  writer_->Receive(busy, 0, 64);
  writer_->Receive(busy, 64, 64);
  Commit(first);
  GetMessage(first, peer, "one");
  ++read_;
  GetMessage(first, peer, "two");
  arena::StoreRelaxed(arena_->bank(0, 1).read_cursor, read_);
  --read_;
  for (uint32_t slot = 1; slot < 3; ++slot) Start(slot);
  // Two changes of owner, of which the keeper sees nothing.
  for (int i = 0; i < 2; ++i) {
    const auto heir = static_cast<uint32_t>(arena_->succession(0).heir - 1);
    workers_[engine_->succession().owner(0).slot]->Die();
    ASSERT_TRUE(Pump([&] { ASSERT_EQ(workers_[heir]->Attend(), 0); },
                     [&] { return arena_->shard(0).owner.owner_worker_id == heir + 1; }));
    if (i == 0) {
      uint64_t version = 0;
      const std::optional<ReconciliationReport> report = ReadShardReport(*arena_, 0, 1, &version);
      ASSERT_TRUE(report.has_value());
      EXPECT_EQ(report->former_worker_id, 1u);
      EXPECT_EQ(report->successor_worker_id, heir + 1);
      EXPECT_EQ(report->never_submitted, 1u);
      EXPECT_EQ(report->in_flight, 1u);
      EXPECT_EQ(report->completed_undelivered, 1u);
      EXPECT_EQ(report->delivered_uncommitted, 1u);
      EXPECT_EQ(report->ambiguous, 0u);
      EXPECT_EQ(report->requests.size(), 4u);
      const uint32_t next = heir == 1 ? 2 : 1;
      arena_->succession(0).heir = next + 1;
      arena_->header().ownership_changes += 1;
      ASSERT_EQ(workers_[next]->Attend(), 0);
    }
  }
  events_.clear();
  engine_->Turn();
  EXPECT_THAT(events_, ElementsAre(HasSubstr("epoch 1 of worker 1 ended: crash"),
                                   HasSubstr("epoch 2 of worker ")));
  EXPECT_EQ(engine_->succession().last_report(0).epoch, 2u);
  EXPECT_EQ(engine_->succession().last_report(0).in_flight, 1u);
}

TEST_F(NativeEngineTest, shouldTellTheHeirOfTheConnectionThatADeadOwnerAskedFor) {
  Worker& first = StartOwner();
  Worker& heir = StartAttending(1);
  RawPeer peer;
  connection_ = engine_->Connect(0, {fabric_.host, peer.Listen()}, "", 42).value();
  first.Die();
  TakeOver(heir);
  const arena::CompletionEntry entry = Next(heir, peer);
  EXPECT_EQ(CompletionKind(entry.kind), CompletionKind::kEstablished);
  EXPECT_EQ(entry.connection, connection_);
  EXPECT_EQ(entry.tag, 42u);
  writer_->Receive(connection_, 0, 1024);
  Commit(heir);
  Exchange(heir, peer);
  EXPECT_EQ(arena_->shard(0).completion_tail, read_);
}

// The owner dies beside its post: only the device can tell whether it was one.
// An RDMA device tells its opener alone, and no worker would ever find it out.
TEST_F(NativeEngineTest, shouldGiveUpADeviceWhoseCompletionQueueFails) {
  may_be_lost_ = device_->queue_fails = true;
  engine_->Turn();
  EXPECT_TRUE(absl::IsDataLoss(lost_));
  EXPECT_THAT(std::string(lost_.message()), HasSubstr("CQ_ERR"));
}

class AmbiguousTest : public NativeEngineTest {
 protected:
  RequestOutcome DieAt(const char* point) {
    RawPeer peer;
    Worker& first = StartOwner(peer);
    Worker& heir = StartAttending(1);
    writer_->Send(connection_, 2048, 4);
    writer_->Publish();
    KillAt(point, [&] { first.Drive(0); });
    first.Die();
    TakeOver(heir);
    peer.Receive();
    EXPECT_EQ(CompletionKind(Next(heir, peer).kind), CompletionKind::kSend);
    engine_->Turn();
    const ReconciliationReport& report = engine_->succession().last_report(0);
    EXPECT_EQ(report.ambiguous, 0u);
    EXPECT_EQ(report.in_flight + report.never_submitted, 2u);  // and a receive
    for (const arena::ReportedRequest& request : report.requests) {
      if (request.send) return request.outcome;
    }
    ADD_FAILURE() << "the send is not told of";
    return RequestOutcome::kAmbiguous;
  }
};

TEST_F(AmbiguousTest, shouldReportASendThatWasNeverPostedOnceTheDeviceHasTold) {
  EXPECT_EQ(DieAt("driver-before-post"), RequestOutcome::kNeverSubmitted);
}

// Its peer has no receive: it cannot have completed.
TEST_F(AmbiguousTest, shouldReportASendThatWasPostedOnceTheDeviceHasTold) {
  EXPECT_EQ(DieAt("driver-after-post"), RequestOutcome::kInFlight);
}

}  // namespace
}  // namespace baton::driver_process
