// Kills the owner of streams under traffic in both directions: at named crash points, and at random
// moments between handoffs, with a fast sender and a slow receiver. No message is lost, repeated or
// torn, credit is conserved, and the peer is never found without a receive.
// BATON_MESSAGES: how many the sender sends (20000); BATON_SEED: of all that is random (printed).
#include <sched.h>
#include <sys/wait.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/crash/crash_fixture.h"
#include "tests/harness/wait_until.h"
#include "tests/lib/stream/stream_peer.h"

namespace baton::crash {
namespace {

constexpr std::chrono::seconds kDeathTimeout{20};
const uint64_t kLatestChangeUs = 150'000 * harness::Slowness();

// A peer with a thread of its own, which sends as fast as it has credit.
class PeerThread {
 public:
  PeerThread(const verbs::testing::Fabric& fabric, uint16_t port)
      : thread_([this, fabric, port] { Run(fabric, port); }) {}
  ~PeerThread() {
    stop_ = true;
    thread_.join();
  }

  std::atomic<uint64_t> to_send = uint64_t{1} << 40;
  std::atomic<uint64_t> answers = 0;
  std::atomic<bool> disconnected = false;
  // Everything is answered, and it has got back the credit that is not below a report's threshold.
  std::atomic<bool> rests = false;

 private:
  void Run(const verbs::testing::Fabric& fabric, uint16_t port) {
    testing::StreamPeer peer(fabric);
    peer.Connect(port);
    while (!stop_) {
      peer.to_send = to_send;
      peer.Turn();
      answers = peer.answers;
      disconnected = peer.disconnected;
      if (peer.established) rests = Rests(peer);
      sched_yield();
    }
  }
  static bool Rests(const testing::StreamPeer& peer) {
    const stream::SenderState& sender = peer.state().sender;
    const uint32_t bells = sender.allowed - sender.bells;
    return peer.sent == peer.to_send && peer.answers == peer.sent / testing::kMessagesPerAnswer &&
           bells > testing::kWindow / 2 && bells <= testing::kWindow &&
           sender.tail - sender.freed < sender.ring_units / 4;
  }

  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

class StreamKillTest : public CrashTest {
 protected:
  using Worker = std::unique_ptr<harness::LedgerWorker>;

  void SetUp() override {
    harness::ClusterOptions options;
    options.batond_arguments = {"--shard-heap-bytes", "1048576"};
    ASSERT_NO_FATAL_FAILURE(StartCluster(options));
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
  static void ExpectProgress(const PeerThread& peer) {
    const uint64_t answers = peer.answers + 20;
    ASSERT_OK(harness::WaitUntil(
        "answers", [&] { return peer.answers >= answers; }, std::chrono::seconds(60)));
    EXPECT_FALSE(peer.disconnected);
  }
  // It has sent `messages`, and no more; all are answered.
  static void ExpectRest(PeerThread& peer, uint64_t messages) {
    peer.to_send = messages;
    EXPECT_OK(harness::WaitUntil(
        "the last answers", [&] { return peer.rests.load(); }, std::chrono::seconds(60)));
    EXPECT_FALSE(peer.disconnected);
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
  for (const char* point :
       {"stream-placed", "stream-reported", "worker-heap-allocated", "worker-heap-freed",
        "worker-receive-staged", "worker-send-staged", "worker-state-staged", "commit-begin",
        "commit-before-publish", "commit-published", "deliver-after-handler"}) {
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

TEST_F(StreamKillTest, shouldConserveCreditBetweenAFastSenderAndASlowReceiver) {
  const uint64_t messages =
      Setting("BATON_MESSAGES", 20'000) / testing::kMessagesPerAnswer * testing::kMessagesPerAnswer;
  const uint64_t seed = Setting("BATON_SEED", std::random_device{}());
  std::printf("%llu messages, BATON_SEED=%llu\n", Printable(messages), Printable(seed));
  std::mt19937_64 random(seed);
  arguments = {"--sleep-us", "100"};
  std::vector<Worker> workers(2);
  for (Worker& worker : workers) ASSERT_NO_FATAL_FAILURE(StartService(&worker));
  const auto peer = StartStream();
  peer->to_send = messages;
  uint64_t kills = 0, handoffs = 0;
  while (peer->answers < messages / testing::kMessagesPerAnswer && !peer->disconnected) {
    PassTime(random() % kLatestChangeUs);
    ASSERT_OK(harness::WaitUntil("an owner of all shards", [&] {
      return cluster_->OwnsAllShards(workers[0]->id) || cluster_->OwnsAllShards(workers[1]->id);
    }));
    const size_t owner = cluster_->OwnsAllShards(workers[0]->id) ? 0 : 1;
    if (random() % 2 == 0) {
      ++handoffs;
      ASSERT_OK(cluster_->Handoff(workers[1 - owner]->id));
    } else {
      ++kills;
      ASSERT_OK(workers[owner]->process->Kill());
      ASSERT_NO_FATAL_FAILURE(StartService(&workers[owner]));
    }
  }
  std::printf("%llu kills, %llu handoffs\n", Printable(kills), Printable(handoffs));
  EXPECT_GT(kills + handoffs, 0u);
  ASSERT_NO_FATAL_FAILURE(ExpectRest(*peer, messages));
}

}  // namespace
}  // namespace baton::crash
