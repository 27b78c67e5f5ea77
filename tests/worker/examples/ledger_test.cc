// The ledger on Baton: sizes and windows, and that a wrong request costs its own connection only.
#include <array>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "gtest/gtest.h"
#include "tests/harness/cluster.h"
#include "tests/harness/cluster_fixture.h"
#include "tests/harness/expectations.h"
#include "tests/harness/wait_until.h"
#include "worker/examples/common/device_factory.h"
#include "worker/examples/common/shared_memory.h"
#include "worker/examples/ledger/ledger_protocol.h"

namespace baton::harness {
namespace {

// One connection that sends what a test tells it, for requests that baton-peer would never make.
class RawPeer {
 public:
  explicit RawPeer(uint16_t port)
      : device_(*examples::OpenDevice("soft")),
        memory_(*examples::SharedMemory::Allocate(4096)),
        region_(*device_->RegisterMemory(memory_.base(), memory_.bytes(), verbs::kLocalWrite)),
        queue_(*device_->CreateCompletionQueue(16)) {
    verbs::QueuePairOptions options;
    options.send_queue = options.receive_queue = queue_.get();
    options.max_send_requests = options.max_receive_requests = 4;
    queue_pair_ = *device_->CreateQueuePair(options);
    const verbs::ScatterGather sge{reinterpret_cast<uint64_t>(memory_.base()) + 1024,
                                   ledger::kReplyBytes, region_->lkey()};
    const verbs::ReceiveRequest receive{1, {&sge, 1}};
    size_t posted = 0;
    EXPECT_TRUE(queue_pair_->PostReceive({&receive, 1}, &posted).ok());
    id_ = *device_->Connect({"127.0.0.1", port}, queue_pair_.get(), {});
  }

  absl::Status WaitFor(verbs::CmEventType type) {
    return WaitUntil("a connection event", [&] {
      device_->Progress();
      std::array<verbs::Completion, 16> completions;
      auto count = queue_->Poll(absl::MakeSpan(completions));
      for (int i = 0; count.ok() && i < *count; ++i) {
        const bool ok = completions[i].status == verbs::CompletionStatus::kSuccess;
        replies_ += completions[i].wr_id == 1 && ok ? 1 : 0;
      }
      verbs::CmEvent event;
      while (device_->NextEvent(&event)) {
        if (event.type == type) return true;
      }
      return false;
    });
  }

  void Send(ledger::Request request) {
    request.magic = ledger::kRequestMagic;
    request.protocol = ledger::kProtocol;
    request.client = 4711;
    request.length = sizeof(request);
    request.check = ledger::Checksum({reinterpret_cast<const uint8_t*>(&request), sizeof(request)});
    std::memcpy(memory_.base(), &request, sizeof(request));
    const verbs::ScatterGather sge{reinterpret_cast<uint64_t>(memory_.base()), sizeof(request),
                                   region_->lkey()};
    verbs::SendRequest send;
    send.sges = {&sge, 1};
    size_t posted = 0;
    EXPECT_TRUE(queue_pair_->PostSend({&send, 1}, &posted).ok());
  }

  int replies() const { return replies_; }

 private:
  std::unique_ptr<verbs::Device> device_;
  examples::SharedMemory memory_;
  std::unique_ptr<verbs::MemoryRegion> region_;
  std::unique_ptr<verbs::CompletionQueue> queue_;
  std::unique_ptr<verbs::QueuePair> queue_pair_;
  std::unique_ptr<verbs::ConnectionId> id_;
  int replies_ = 0;
};

class LedgerTest : public harness::ClusterFixture {
 protected:
  void Start(ClusterOptions options) {
    ASSERT_OK_AND_ASSIGN(cluster_, Cluster::Start(std::move(options)));
    ASSERT_OK_AND_ASSIGN(worker_, cluster_->StartLedger(1));
    ASSERT_OK(cluster_->WaitUntilOwner(worker_->id));
  }
  // With a standby, and a peer whose connections have all been answered.
  void StartWithStandby(ClusterOptions options, const PeerOptions& peer) {
    ASSERT_NO_FATAL_FAILURE(Start(std::move(options)));
    ASSERT_OK_AND_ASSIGN(standby_, cluster_->StartLedger(2));
    ASSERT_OK_AND_ASSIGN(peer_, cluster_->StartPeer(peer));
    ASSERT_OK(peer_->Settle());
  }
  // The standby answers all connections.
  void FailOver() {
    ASSERT_OK(worker_->process->Kill());
    ASSERT_OK(peer_->Settle());
  }

  std::unique_ptr<LedgerWorker> worker_, standby_;
  std::unique_ptr<PeerProcess> peer_;
};

TEST_F(LedgerTest, LargeMessagesAndFullWindowsSurviveAFailover) {
  ClusterOptions options;
  options.shards = 2;
  options.max_connections = 4;
  options.window = 64;
  options.message_bytes = 4096;
  PeerOptions peer_options;
  peer_options.connections = 4;
  peer_options.window = 32;
  peer_options.message_bytes = 4096;
  ASSERT_NO_FATAL_FAILURE(StartWithStandby(std::move(options), peer_options));
  ASSERT_NO_FATAL_FAILURE(FailOver());
  auto window = peer_->Mark("after");
  ASSERT_OK(window);
  EXPECT_EQ(window->last_versions[2], 4u);
  ASSERT_OK(peer_->StopChecked());
}

// An owner that has served an account before finds it as its successor has left it.
TEST_F(LedgerTest, AccountsThatAreSeldomAskedOutliveHandoffsToAndFro) {
  ClusterOptions options;
  options.shards = 2;
  options.max_connections = 6;
  PeerOptions peer_options;
  peer_options.connections = 6;
  peer_options.active = 2;
  peer_options.rate = 1000;
  ASSERT_NO_FATAL_FAILURE(StartWithStandby(std::move(options), peer_options));
  for (const bool ask_all : {true, false, true, false, false, true}) {
    ASSERT_OK(cluster_->Handoff(standby_->id));
    std::swap(worker_, standby_);
    ASSERT_OK((ask_all ? peer_->Settle() : peer_->SettleActive()));
    auto window = peer_->Mark("after");
    ASSERT_OK(window);
    EXPECT_GE(window->last_versions[worker_->version], ask_all ? 6u : 2u);
  }
  ASSERT_OK(peer_->StopChecked());
}

TEST_F(LedgerTest, LearnsTheQueueDepthsOfItsService) {
  ClusterOptions options;
  options.shards = 2;
  options.max_connections = 4;
  options.window = 4;
  options.batond_arguments = {"--send-queue-depth", "4", "--receive-queue-depth", "8"};
  PeerOptions peer_options;
  peer_options.connections = 4;
  peer_options.window = 2;
  ASSERT_NO_FATAL_FAILURE(StartWithStandby(std::move(options), peer_options));
  ASSERT_NO_FATAL_FAILURE(FailOver());
  ASSERT_OK(peer_->StopChecked());
}

TEST_F(LedgerTest, RefusesAWindowThatTheQueuesDoNotHold) {
  ClusterOptions options;
  options.window = 8;
  options.batond_arguments = {"--send-queue-depth", "8"};
  ASSERT_NO_FATAL_FAILURE(Start(std::move(options)));
  ChildOptions child;
  ASSERT_OK_AND_ASSIGN(child.program, Binaries().Find("ledger-v2"));
  child.arguments = {"--socket", cluster_->SocketPath(), "--window", "9"};
  child.log_path = cluster_->directory() + "/refused.log";
  auto refused = ChildProcess::Start(child);
  ASSERT_OK(refused);
  auto end = (*refused)->WaitEnd(std::chrono::seconds(20));
  ASSERT_OK(end);
  EXPECT_NE((*refused)->LogTail().find("window 9: choose 1 to 8, the service's queue depth"),
            std::string::npos)
      << (*refused)->LogTail();
}

TEST_F(LedgerTest, WrongRequestCostsItsOwnConnectionOnly) {
  ClusterOptions options;
  options.shards = 1;
  options.max_connections = 8;
  ASSERT_NO_FATAL_FAILURE(Start(std::move(options)));
  PeerOptions peer_options;
  peer_options.connections = 2;
  peer_options.rate = 2000;
  ASSERT_OK_AND_ASSIGN(peer_, cluster_->StartPeer(peer_options));

  ledger::Request gap{};
  gap.sequence = 5;
  ledger::Request resume{};
  resume.flags = ledger::kFlagResume;
  resume.sequence = 5;
  resume.resume_sequence = 4;
  for (const auto& [request, reason] :
       {std::pair(gap, "request 5 follows 0"), std::pair(resume, "request resumes an account")}) {
    RawPeer raw(cluster_->port());
    ASSERT_OK(raw.WaitFor(verbs::CmEventType::kEstablished));
    raw.Send(request);
    ASSERT_TRUE(raw.WaitFor(verbs::CmEventType::kDisconnected).ok()) << reason;
    EXPECT_EQ(raw.replies(), 0);
    EXPECT_NE(worker_->process->LogTail().find(reason), std::string::npos) << reason;
  }
  EXPECT_FALSE(worker_->process->HasEnded());
  ASSERT_OK(peer_->Settle());
  ASSERT_OK(peer_->StopChecked());
}

TEST_F(LedgerTest, ConnectionWithoutBuffersIsRefusedWithTheReason) {
  ClusterOptions options;
  options.shards = 1;
  options.max_connections = 4;
  options.message_bytes = 65536;  // 8 MiB of requests per connection
  options.batond_arguments = {"--buffer-bytes", "4194304"};
  ASSERT_NO_FATAL_FAILURE(Start(std::move(options)));
  RawPeer raw(cluster_->port());
  ASSERT_OK(raw.WaitFor(verbs::CmEventType::kRejected));
  EXPECT_NE(worker_->process->LogTail().find("raise buffer_bytes"), std::string::npos);
  EXPECT_FALSE(worker_->process->HasEnded());
}

}  // namespace
}  // namespace baton::harness
