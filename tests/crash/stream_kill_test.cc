// Kills the owner of streams under traffic in both directions, brokered and native: at named crash
// points, and at random moments between handoffs, with a fast sender and a slow receiver. No
// message is lost, repeated or torn, the peer never meets "receiver not ready", and in the end all
// credit is with one of the ends: what the peer knows is compared with what the service has
// committed.
//
// BATON_MESSAGES: how many the sender sends at least (20000); BATON_KILLS: how many owners are
// killed at random at least (5); BATON_SEED: of all that is random (printed).
#include <sched.h>
#include <stdlib.h>
#include <sys/wait.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "lib/stream/ring.h"
#include "proto/baton/v1/inspect.pb.h"
#include "supervisor/inspect/arena_view.h"
#include "supervisor/inspect/source.h"
#include "tests/crash/crash_fixture.h"
#include "tests/harness/binaries.h"
#include "tests/harness/wait_until.h"
#include "tests/lib/stream/stream_peer.h"

namespace baton::crash {
namespace {

constexpr char kService[] = "ledger";  // as the harness names it
constexpr std::chrono::seconds kDeathTimeout{20};
constexpr std::chrono::seconds kPatience{60};
const uint64_t kLatestChangeUs = 150'000 * harness::Slowness();
const std::vector<std::string> kSlowReceiver = {"--sleep-us", "100"};
// With few native workers, each lives too shortly, and the next are forked later and later.
const std::vector<std::string> kNativeWorkers = {"--native-workers", "8", "--max-workers", "32"};
constexpr const char* kPoints[] = {
    "stream-placed",         "stream-reported",    "worker-heap-allocated", "worker-heap-freed",
    "worker-receive-staged", "worker-send-staged", "worker-state-staged",   "commit-begin",
    "commit-before-publish", "commit-published",   "deliver-after-handler",
};

// A peer with a thread of its own, which sends as fast as it has credit.
class PeerThread {
 public:
  PeerThread(const verbs::testing::Fabric& fabric, uint16_t port)
      : thread_([this, fabric, port] { Run(fabric, port); }) {}
  ~PeerThread() {
    stop_ = true;
    thread_.join();
  }

  // It sends no more than what the next answer needs.
  void Finish() { finishes_ = true; }
  // Its side of the stream when it has finished and everything is answered; before, nothing.
  std::optional<stream::StreamState> StateAtRest() {
    const std::lock_guard lock(mutex_);
    return at_rest_;
  }

  std::atomic<uint64_t> answers = 0;
  std::atomic<bool> disconnected = false;
  std::atomic<bool> was_not_ready = false;  // as StreamPeer's

 private:
  void Run(const verbs::testing::Fabric& fabric, uint16_t port) {
    testing::StreamPeer peer(fabric);
    peer.Connect(port);
    peer.to_send = ~uint64_t{0};
    while (!stop_) {
      if (finishes_) peer.to_send = EndOfAnswer(peer.sent);
      peer.Turn();
      answers = peer.answers;
      disconnected = peer.disconnected;
      was_not_ready = peer.was_not_ready;
      if (peer.sent == peer.to_send && peer.answers == AnswersOf(peer.sent)) {
        const std::lock_guard lock(mutex_);
        at_rest_ = peer.state();
      }
      sched_yield();
    }
  }
  static uint64_t AnswersOf(uint64_t messages) { return messages / testing::kMessagesPerAnswer; }
  static uint64_t EndOfAnswer(uint64_t messages) {
    constexpr uint64_t kEach = testing::kMessagesPerAnswer;
    return (messages + kEach - 1) / kEach * kEach;
  }

  std::atomic<bool> stop_ = false, finishes_ = false;
  std::mutex mutex_;
  std::optional<stream::StreamState> at_rest_;
  std::thread thread_;  // the last: it uses the others
};

class StreamKillTest : public CrashTest {
 protected:
  using Worker = std::unique_ptr<harness::LedgerWorker>;

  void SetUp() override { ASSERT_NO_FATAL_FAILURE(StartCluster(Options())); }
  virtual harness::ClusterOptions Options() const {
    harness::ClusterOptions options;
    options.batond_arguments = {"--shard-heap-bytes", "1048576"};
    return options;
  }
  // The arguments for native workers of this object.
  static harness::ClusterOptions NativeOptions(harness::ClusterOptions options,
                                               const char* object) {
    options.native_object = harness::Binaries().Find(object).value();
    options.batond_arguments.insert(options.batond_arguments.end(), kNativeWorkers.begin(),
                                    kNativeWorkers.end());
    return options;
  }

  void StartService(Worker* worker, const std::string& crash_at = {}) {
    harness::LedgerOptions options;
    options.program = crash_at.empty() ? "stream-service" : "stream-service-test-hooks";
    options.crash_at = crash_at;
    options.arguments = arguments;
    ASSERT_NO_FATAL_FAILURE(StartWorker(options, worker));
  }
  std::unique_ptr<PeerThread> StartStream() {
    return std::make_unique<PeerThread>(verbs::testing::FabricUnderTest(), cluster_->port());
  }
  static void ExpectProgress(const PeerThread& peer, uint64_t more = 20) {
    const uint64_t answers = peer.answers + more;
    ASSERT_OK(harness::WaitUntil(
        "answers", [&] { return peer.answers >= answers || peer.disconnected; }, kPatience));
    ASSERT_FALSE(peer.disconnected);
    EXPECT_FALSE(peer.was_not_ready);
  }
  // Checks the service's only stream, which has everything answered: nothing is missing.
  void ExpectConserved(PeerThread& peer) {
    peer.Finish();
    std::string last;
    const absl::Status conserved = harness::WaitUntil(
        "all credit to be with one of the ends",
        [&] {
          const std::optional<stream::StreamState> ours = peer.StateAtRest();
          const absl::StatusOr<stream::StreamState> theirs = Committed();
          if (ours.has_value() && theirs.ok()) {
            last = absl::StrCat("to the service: ", ToText(ours->sender, theirs->receiver),
                                "; from it: ", ToText(theirs->sender, ours->receiver));
            return testing::IsConserved(*ours, *theirs);
          }
          last = ours.has_value() ? theirs.status().ToString() : "not all is answered";
          return false;
        },
        kPatience);
    EXPECT_TRUE(conserved.ok()) << conserved << ": " << last;
    EXPECT_FALSE(peer.disconnected);
    EXPECT_FALSE(peer.was_not_ready);
  }
  // Reads it in the arena, as `baton inspect` does.
  absl::StatusOr<stream::StreamState> Committed() {
    BATON_ASSIGN_OR_RETURN(inspect::ArenaFiles files,
                           inspect::FindArena(cluster_->directory() + "/state", kService));
    BATON_ASSIGN_OR_RETURN(const inspect::ArenaView arena,
                           inspect::ArenaView::Open(std::move(files), kService));
    inspect::Selection selection;
    selection.connections = selection.state = true;
    BATON_ASSIGN_OR_RETURN(const v1::Inspection inspection,
                           inspect::Inspect(arena, selection, MonotonicNanoseconds()));
    if (inspection.connections_size() != 1) return absl::UnavailableError("not one connection");
    for (const auto& slot : inspection.connections(0).application_state().slots()) {
      stream::StreamState state;  // what a connection's state begins with
      if (!slot.committed() || slot.content().size() < sizeof(state)) continue;
      std::memcpy(&state, slot.content().data(), sizeof(state));
      return state;
    }
    return absl::UnavailableError("nothing is committed");
  }
  static std::string ToText(const stream::SenderState& from, const stream::ReceiverState& to) {
    return absl::StrCat("bells ", from.bells, " of ", from.allowed, ", receives ", to.posted, " + ",
                        to.owed, ", tails ", from.tail, " and ", to.tail, ", heads ", from.freed,
                        ", ", to.reported_head, " and ", to.head);
  }
  // The shard of the only stream, with its owner; nothing when nobody owns it, or nobody can say.
  std::optional<v1::Shard> StreamShard() {
    const absl::StatusOr<v1::GetServiceResponse> service = cluster_->GetService();
    if (!service.ok()) return std::nullopt;
    for (const v1::Shard& shard : service->shards()) {
      if (shard.connections() > 0 && shard.owner_worker_id() != 0) return shard;
    }
    return std::nullopt;
  }
  void ExpectDeath(const Worker& doomed) {
    const auto ended = doomed->process->WaitEnd(kDeathTimeout);
    ASSERT_OK(ended);
    ASSERT_TRUE(WIFSIGNALED(*ended) && WTERMSIG(*ended) == SIGKILL) << *ended;
  }

  std::vector<std::string> arguments;
};

TEST_F(StreamKillTest, shouldTearNothingWhenAnOwnerDiesAtAnyPoint) {
  Worker safe;
  ASSERT_NO_FATAL_FAILURE(StartService(&safe));
  const auto peer = StartStream();
  for (const char* point : kPoints) {
    for (const int passing : {20, 1}) {
      if (passing == 1 && harness::Slowness() > 1) continue;
      SCOPED_TRACE(absl::StrCat(point, ":", passing));
      Worker doomed;
      ASSERT_NO_FATAL_FAILURE(StartService(&doomed, absl::StrCat(point, ":", passing)));
      (void)cluster_->Handoff(doomed->id);  // it may die before that is answered
      ASSERT_NO_FATAL_FAILURE(ExpectDeath(doomed));
      ASSERT_OK(cluster_->WaitUntilOwner(safe->id));
      ASSERT_NO_FATAL_FAILURE(ExpectProgress(*peer));
    }
  }
  ExpectConserved(*peer);
}

TEST_F(StreamKillTest, shouldAcceptAndEndStreamsWhoseOwnersDie) {
  Worker safe, granting, revoking;
  ASSERT_NO_FATAL_FAILURE(StartService(&safe));
  ASSERT_NO_FATAL_FAILURE(StartService(&granting, "stream-ring-granted"));
  ASSERT_OK(cluster_->Handoff(granting->id));
  auto peer = StartStream();
  ASSERT_NO_FATAL_FAILURE(ExpectDeath(granting));
  ASSERT_NO_FATAL_FAILURE(ExpectProgress(*peer));
  ASSERT_NO_FATAL_FAILURE(StartService(&revoking, "stream-ring-revoked"));
  ASSERT_OK(cluster_->Handoff(revoking->id));
  const auto other = StartStream();
  ASSERT_NO_FATAL_FAILURE(ExpectProgress(*other));
  peer.reset();
  ASSERT_NO_FATAL_FAILURE(ExpectDeath(revoking));
  // Its successor ends the same stream, and not the other.
  ASSERT_OK(cluster_->WaitUntilOwner(safe->id));
  const auto next = StartStream();
  ASSERT_NO_FATAL_FAILURE(ExpectProgress(*next));
  ASSERT_NO_FATAL_FAILURE(ExpectProgress(*other));
}

// Native workers are forked with the environment of their driver, and each counts for itself.
class NativeStreamKillTest : public StreamKillTest,
                             public ::testing::WithParamInterface<const char*> {
 protected:
  static constexpr int kPassings = 300;  // of each: some hundred messages are read before

  void SetUp() override {
    ASSERT_EQ(setenv("BATON_CRASH_AT", absl::StrCat(GetParam(), ":", kPassings).c_str(), 1), 0);
    ASSERT_NO_FATAL_FAILURE(StreamKillTest::SetUp());
    ASSERT_OK(cluster_->WaitUntilListening());
  }
  void TearDown() override {
    unsetenv("BATON_CRASH_AT");
    StreamKillTest::TearDown();
  }
  harness::ClusterOptions Options() const override {
    return NativeOptions(StreamKillTest::Options(), "stream-service-test-hooks.so");
  }
};
INSTANTIATE_TEST_SUITE_P(Points, NativeStreamKillTest, ::testing::ValuesIn(kPoints));

TEST_P(NativeStreamKillTest, shouldTearNothingWhenOwnersDieAtAPoint) {
  const auto peer = StartStream();
  uint64_t owner = 0;
  for (int deaths = -1; deaths < 3; ++deaths) {  // the first one found has not followed a death
    ASSERT_OK(harness::WaitUntil(
        "the next owner",
        [&] {
          const std::optional<v1::Shard> shard = StreamShard();
          if (!shard.has_value() || shard->owner_worker_id() == owner) return false;
          owner = shard->owner_worker_id();
          return true;
        },
        kPatience));
    ASSERT_NO_FATAL_FAILURE(ExpectProgress(*peer));
  }
  ExpectConserved(*peer);
}

// With both kinds of workers.
class StreamTrafficTest : public StreamKillTest, public ::testing::WithParamInterface<bool> {
 protected:
  static bool IsNative() { return GetParam(); }

  void SetUp() override {
    arguments = kSlowReceiver;
    ASSERT_NO_FATAL_FAILURE(StreamKillTest::SetUp());
    if (IsNative()) ASSERT_OK(cluster_->WaitUntilListening());
    for (Worker& worker : workers_) {
      if (!IsNative()) ASSERT_NO_FATAL_FAILURE(StartService(&worker));
    }
  }
  harness::ClusterOptions Options() const override {
    harness::ClusterOptions options = StreamKillTest::Options();
    if (!IsNative()) return options;
    options.native_arguments = kSlowReceiver;
    return NativeOptions(std::move(options), "stream-service.so");
  }

  void AwaitOwner(uint64_t* owner) {
    ASSERT_OK(harness::WaitUntil(
        "an owner of the stream",
        [&] {
          const std::optional<v1::Shard> shard = StreamShard();
          *owner = shard.has_value() ? shard->owner_worker_id() : 0;
          return *owner != 0 && (IsNative() || cluster_->OwnsAllShards(*owner));
        },
        kPatience));
  }
  void Kill(uint64_t owner) {
    if (IsNative()) {
      ASSERT_OK(cluster_->KillWorker(owner, kPatience));
      return;
    }
    Worker& worker = workers_[workers_[0]->id == owner ? 0 : 1];
    ASSERT_OK(worker->process->Kill());
    ASSERT_NO_FATAL_FAILURE(StartService(&worker));
  }
  // To any other worker that is ready. Shards of which nobody knows the owner yet hold it up.
  void HandOver(uint64_t owner) {
    ASSERT_OK(harness::WaitUntil(
        "a handoff",
        [&] {
          const absl::StatusOr<v1::GetServiceResponse> service = cluster_->GetService();
          if (!service.ok()) return false;
          for (const v1::Worker& worker : service->workers()) {
            if (worker.id() == owner || worker.state() != v1::WORKER_STATE_READY) continue;
            return cluster_->Handoff(worker.id()).ok();
          }
          return false;
        },
        kPatience));
  }

 private:
  std::array<Worker, 2> workers_;  // brokered ones
};
INSTANTIATE_TEST_SUITE_P(Brokered, StreamTrafficTest, ::testing::Values(false));
INSTANTIATE_TEST_SUITE_P(Native, StreamTrafficTest, ::testing::Values(true));

TEST_P(StreamTrafficTest, shouldConserveCreditBetweenAFastSenderAndASlowReceiver) {
  const uint64_t messages = harness::Setting("BATON_MESSAGES", 20'000);
  const uint64_t kills = harness::Setting("BATON_KILLS", 5);
  const uint64_t seed = harness::Setting("BATON_SEED", std::random_device{}());
  std::printf("%llu messages, %llu kills, BATON_SEED=%llu\n", Printable(messages), Printable(kills),
              Printable(seed));
  std::mt19937_64 random(seed);
  const auto peer = StartStream();
  uint64_t killed = 0, handoffs = 0;
  while (peer->answers < messages / testing::kMessagesPerAnswer || killed < kills) {
    // Owners that die one after another without progress would be taken for victims of a poisonous
    // message.
    ASSERT_NO_FATAL_FAILURE(ExpectProgress(*peer, 1));
    PassTime(random() % kLatestChangeUs);
    uint64_t owner = 0;
    ASSERT_NO_FATAL_FAILURE(AwaitOwner(&owner));
    if (random() % 2 == 0) {
      ++handoffs;
      ASSERT_NO_FATAL_FAILURE(HandOver(owner));
    } else {
      ++killed;
      ASSERT_NO_FATAL_FAILURE(Kill(owner));
    }
  }
  std::printf("%llu answers, %llu kills, %llu handoffs\n", Printable(peer->answers),
              Printable(killed), Printable(handoffs));
  ExpectConserved(*peer);
}

}  // namespace
}  // namespace baton::crash
