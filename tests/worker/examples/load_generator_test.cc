// The load generator against a service that misbehaves on the wire: what reaches the peer's buffers
// wrongly is counted as what it is, all the way through device, completions and checker.
#include "worker/examples/peer/load_generator.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "tests/worker/examples/reseal.h"
#include "worker/examples/common/device_factory.h"
#include "worker/examples/ledger/ledger_account.h"
#include "worker/examples/peer/report.h"

namespace baton::peer {
namespace {

using ledger::kReplyBytes;
using ledger::Reply;

constexpr uint32_t kSlots = 64;

std::unique_ptr<verbs::Device> OpenSoft() {
  auto device = examples::OpenDevice("soft");
  EXPECT_TRUE(device.ok()) << device.status();
  return *std::move(device);
}

// A ledger for one connection, whose replies a test rewrites. Everything in the test's own thread.
class FaultyServer {
 public:
  // Returns the replies to send instead of `reply`: none, one or several.
  using Rewrite = std::function<std::vector<Reply>(const Reply& reply)>;

  explicit FaultyServer(Rewrite rewrite)
      : rewrite_(std::move(rewrite)),
        device_(OpenSoft()),
        memory_(*examples::SharedMemory::Allocate(2 * kSlots * kReplyBytes)),
        region_(*device_->RegisterMemory(memory_.base(), memory_.bytes(), verbs::kLocalWrite)),
        queue_(*device_->CreateCompletionQueue(1024)),
        listener_(*device_->Listen({"127.0.0.1", 0}, 16)) {
    verbs::QueuePairOptions options;
    options.send_queue = options.receive_queue = queue_.get();
    options.max_send_requests = options.max_receive_requests = kSlots;
    queue_pair_ = *device_->CreateQueuePair(options);
    for (uint32_t slot = 0; slot < kSlots; ++slot) PostReceive(slot);
  }

  verbs::Address address() const { return listener_->address(); }
  void Disconnect() { EXPECT_TRUE(id_->Disconnect().ok()); }

  void Turn() {
    device_->Progress();
    verbs::CmEvent event;
    while (device_->NextEvent(&event)) {
      if (event.type != verbs::CmEventType::kConnectRequest) continue;
      id_ = std::move(event.new_id);
      EXPECT_TRUE(id_->Accept(queue_pair_.get(), {}).ok());
    }
    std::array<verbs::Completion, 32> completions;
    const int count = *queue_->Poll(absl::MakeSpan(completions));
    for (int i = 0; i < count; ++i) {
      const verbs::Completion& completion = completions[i];
      const bool received = completion.wr_id < kSlots;
      if (received && completion.status == verbs::CompletionStatus::kSuccess) {
        OnRequest(static_cast<uint32_t>(completion.wr_id), completion.byte_len);
      }
    }
    device_->Progress();
  }

 private:
  void PostReceive(uint32_t slot) {
    const verbs::ScatterGather sge{reinterpret_cast<uint64_t>(memory_.base()) + slot * kReplyBytes,
                                   kReplyBytes, region_->lkey()};
    const verbs::ReceiveRequest request{slot, {&sge, 1}};
    size_t posted = 0;
    EXPECT_TRUE(queue_pair_->PostReceive({&request, 1}, &posted).ok());
  }

  void OnRequest(uint32_t slot, uint32_t length) {
    auto reply = account_.Apply({memory_.base() + slot * kReplyBytes, length}, 1,
                                ledger::ResumePolicy::kRefuse);
    ASSERT_TRUE(reply.ok()) << reply.status();
    PostReceive(slot);
    for (const Reply& one : rewrite_(*reply)) Send(one);
  }

  void Send(const Reply& reply) {
    const uint64_t slot = kSlots + sent_++ % kSlots;
    uint8_t* buffer = memory_.base() + slot * kReplyBytes;
    std::memcpy(buffer, &reply, sizeof(reply));
    const verbs::ScatterGather sge{reinterpret_cast<uint64_t>(buffer), kReplyBytes,
                                   region_->lkey()};
    verbs::SendRequest request;
    request.wr_id = slot;
    request.sges = {&sge, 1};
    size_t posted = 0;
    EXPECT_TRUE(queue_pair_->PostSend({&request, 1}, &posted).ok());
  }

  const Rewrite rewrite_;
  std::unique_ptr<verbs::Device> device_;
  examples::SharedMemory memory_;
  std::unique_ptr<verbs::MemoryRegion> region_;
  std::unique_ptr<verbs::CompletionQueue> queue_;
  std::unique_ptr<verbs::Listener> listener_;
  std::unique_ptr<verbs::QueuePair> queue_pair_;
  std::unique_ptr<verbs::ConnectionId> id_;
  ledger::LedgerAccount account_;
  uint64_t sent_ = 0;
};

class LoadGeneratorTest : public ::testing::Test {
 protected:
  // A test waits so long for a reply that does not come. A reply that comes takes less, also on a
  // busy machine.
  static constexpr uint32_t kShortTimeoutMs = 500;
  // Full speed against `rewrite` until `messages` were answered, then to the end of all replies.
  Summary Load(FaultyServer::Rewrite rewrite, uint64_t messages = 1000,
               uint32_t reply_timeout_ms = 20'000) {
    FaultyServer server(std::move(rewrite));
    LoadOptions options;
    options.address = server.address();
    options.reply_timeout_ms = reply_timeout_ms;
    auto generator = LoadGenerator::Create(OpenSoft(), options);
    EXPECT_TRUE(generator.ok()) << generator.status();
    EXPECT_TRUE((*generator)->Start().ok());
    RunUntil(server, **generator, [&] { return (*generator)->Summarize().messages >= messages; });
    (*generator)->StopSending();
    RunUntil(server, **generator, [&] { return (*generator)->IsDrained(); });
    return (*generator)->Summarize();
  }

  static void RunUntil(FaultyServer& server, LoadGenerator& generator,
                       const std::function<bool()>& condition) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!condition()) {
      ASSERT_LT(std::chrono::steady_clock::now(), deadline);
      server.Turn();
      ASSERT_TRUE(generator.Turn().ok());
    }
  }

  static void ExpectOnly(const Summary& summary, Defects expected) {
    EXPECT_EQ(summary.defects.lost, expected.lost);
    EXPECT_EQ(summary.defects.duplicated, expected.duplicated);
    EXPECT_EQ(summary.defects.reordered, expected.reordered);
    EXPECT_EQ(summary.defects.corrupt, expected.corrupt);
    EXPECT_EQ(summary.defects.wrong_total, expected.wrong_total);
    EXPECT_EQ(IsClean(summary, false), expected.Sum() == 0);
  }
};

TEST_F(LoadGeneratorTest, HonestServiceIsClean) {
  const Summary summary = Load([](const Reply& reply) { return std::vector{reply}; });
  ExpectOnly(summary, {});
  EXPECT_EQ(summary.messages, summary.sent);
  EXPECT_EQ(summary.versions[1], summary.messages);
  EXPECT_EQ(summary.latency.count(), summary.messages);
}

TEST_F(LoadGeneratorTest, ReplyThatNeverComesIsLost) {
  const Summary summary = Load(
      [](const Reply& reply) {
        return reply.sequence == 500 ? std::vector<Reply>{} : std::vector{reply};
      },
      1000, kShortTimeoutMs);
  ExpectOnly(summary, {.lost = 1});
  EXPECT_GE(summary.max_silence, 40'000'000u);  // its window was closed meanwhile
}

TEST_F(LoadGeneratorTest, ReplyThatComesTwiceIsDuplicated) {
  const Summary summary = Load(
      [](const Reply& reply) { return std::vector<Reply>(reply.sequence == 500 ? 2 : 1, reply); });
  ExpectOnly(summary, {.duplicated = 1});
}

TEST_F(LoadGeneratorTest, RepliesThatSwapPlacesAreReordered) {
  Reply held = {};
  const Summary summary = Load([&](const Reply& reply) {
    if (reply.sequence == 500) {
      held = reply;
      return std::vector<Reply>{};
    }
    if (reply.sequence == 501) return std::vector{reply, held};
    return std::vector{reply};
  });
  ExpectOnly(summary, {.reordered = 1});
}

TEST_F(LoadGeneratorTest, FlippedBitIsCorruptAndItsRequestLost) {
  const Summary summary = Load(
      [](const Reply& reply) {
        Reply flipped = reply;
        if (reply.sequence == 500) flipped.total ^= 1;
        return std::vector{flipped};
      },
      1000, kShortTimeoutMs);
  ExpectOnly(summary, {.lost = 1, .corrupt = 1});
}

TEST_F(LoadGeneratorTest, EffectThatIsForgottenIsSeenEverAfter) {
  const Summary summary = Load([](const Reply& reply) {
    Reply wrong = reply;
    if (reply.sequence > 500) wrong.total -= 1;
    Reseal(&wrong);
    return std::vector{wrong};
  });
  ExpectOnly(summary, {.wrong_total = summary.messages - 500});
}

TEST_F(LoadGeneratorTest, DisconnectIsCountedAndWhatWasOpenIsLost) {
  FaultyServer server([](const Reply& reply) {
    return reply.sequence > 100 ? std::vector<Reply>{} : std::vector{reply};
  });
  LoadOptions options;
  options.address = server.address();
  auto generator = LoadGenerator::Create(OpenSoft(), options);
  ASSERT_TRUE(generator.ok()) << generator.status();
  ASSERT_TRUE((*generator)->Start().ok());
  RunUntil(server, **generator, [&] {
    const Summary summary = (*generator)->Summarize();
    return summary.messages == 100 && summary.sent == 100 + options.window;
  });
  server.Disconnect();
  RunUntil(server, **generator, [&] { return (*generator)->Summarize().disconnects == 1; });
  const Summary summary = (*generator)->Summarize();
  EXPECT_EQ(summary.defects.lost, options.window);
  EXPECT_FALSE(IsClean(summary, false));
  EXPECT_FALSE((*generator)->connection_error().ok());
}

TEST_F(LoadGeneratorTest, NobodyThereIsAFailure) {
  LoadOptions options;
  {
    FaultyServer gone([](const Reply& reply) { return std::vector{reply}; });
    options.address = gone.address();
  }
  auto generator = LoadGenerator::Create(OpenSoft(), options);
  ASSERT_TRUE(generator.ok()) << generator.status();
  ASSERT_TRUE((*generator)->Start().ok());
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while ((*generator)->connection_error().ok()) {
    ASSERT_LT(std::chrono::steady_clock::now(), deadline);
    ASSERT_TRUE((*generator)->Turn().ok());
  }
  EXPECT_FALSE(IsClean((*generator)->Summarize(), false));
}

TEST_F(LoadGeneratorTest, WindowsMeasureSilence) {
  bool silent = false;
  std::vector<Reply> held;
  FaultyServer server([&](const Reply& reply) {
    if (!silent) return std::vector{reply};
    held.push_back(reply);
    return std::vector<Reply>{};
  });
  LoadOptions options;
  options.address = server.address();
  auto generator = LoadGenerator::Create(OpenSoft(), options);
  ASSERT_TRUE(generator.ok()) << generator.status();
  ASSERT_TRUE((*generator)->Start().ok());
  (*generator)->BeginSettle();
  RunUntil(server, **generator, [&] { return (*generator)->IsSettled(); });
  (*generator)->EndWindow();
  silent = true;
  const auto start = std::chrono::steady_clock::now();
  RunUntil(server, **generator, [&] {
    return std::chrono::steady_clock::now() > start + std::chrono::milliseconds(30);
  });
  const WindowSummary window = (*generator)->EndWindow();
  EXPECT_GE(window.max_silence, 25'000'000u);
  EXPECT_EQ(window.last_versions[1], 1u);
  (*generator)->BeginSettle();
  EXPECT_FALSE((*generator)->IsSettled());
}

}  // namespace
}  // namespace baton::peer
