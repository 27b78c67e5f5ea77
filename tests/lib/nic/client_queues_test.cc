// A device executes what two clients post to queues in mlx5's format, in memory that it shares with
// them: a requester and a responder on either side, and frames that go from hand to hand.
#include "lib/nic/client_queues.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "lib/nic/event_loop.h"
#include "lib/nic/requester.h"
#include "lib/nic/responder.h"
#include "lib/nic/work_host.h"
#include "tests/lib/verbs/mlx5/queue_memory.h"

namespace baton::verbs::mlx5 {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

constexpr CompletionStatus kSuccess = CompletionStatus::kSuccess;
constexpr CompletionStatus kLocalQpError = CompletionStatus::kLocalQpError;
constexpr CompletionStatus kFlushError = CompletionStatus::kFlushError;

constexpr soft::WindowLimits kWindow = {2, 3, 100};
constexpr SendQueueLimits kDriver = {8, 400};  // more than the device keeps
constexpr uint32_t kReads = 2;

// One range of this process. Its key may be invalidated.
class Memory final : public soft::MemoryAccess {
 public:
  static constexpr uint32_t kKey = 77;

  explicit Memory(absl::Span<uint8_t> range) : range_(range) {}

  uint8_t* FindLocal(uint32_t key, uint64_t address, uint64_t length, uint32_t) const override {
    const uint64_t offset = address - reinterpret_cast<uintptr_t>(range_.data());
    const bool found = key == kKey && offset <= range_.size() && length <= range_.size() - offset;
    return found ? range_.data() + offset : nullptr;
  }
  uint8_t* FindRemote(uint32_t key, uint64_t address, uint64_t length,
                      uint32_t access) const override {
    return invalidated ? nullptr : FindLocal(key, address, length, access);
  }
  bool Invalidate(uint32_t key) override {
    return key == kKey && !std::exchange(invalidated, true);
  }

  bool invalidated = false;

 private:
  const absl::Span<uint8_t> range_;
};

// A queue pair of a client: its driver's side, and its device's.
class End final : public soft::WorkHost, private Doorbell {
 public:
  using Told = std::pair<uint64_t, CompletionStatus>;

  End(soft::EventLoop* loop, Memory* memory, uint32_t initiator_depth = kReads)
      : loop_(loop), memory_(memory) {
    completions.Add(queues->completing());
    soft::Requester::Parameters parameters;
    parameters.initiator_depth = initiator_depth;
    requester_.Start(parameters);
    responder_.Start(kReads, 1);
  }

  absl::Status Send(SendRequest request, absl::Span<const ScatterGather> sges) {
    size_t posted = 0;
    request.sges = sges;
    return sends.Post({&request, 1}, &posted);
  }
  absl::Status Receive(uint64_t wr_id, absl::Span<const ScatterGather> sges) {
    size_t posted = 0;
    const ReceiveRequest request = {wr_id, sges};
    return receives.Post({&request, 1}, &posted);
  }
  Completion PollOne() {
    Completion completion;
    EXPECT_EQ(completions.Take({&completion, 1}).value_or(-1), 1);
    return completion;
  }
  std::vector<Told> Poll() {
    std::vector<Told> told;
    Completion completion;
    while (completions.Take({&completion, 1}).value_or(0) == 1) {
      told.emplace_back(completion.wr_id, completion.status);
    }
    return told;
  }
  mlx5_wqe_ctrl_seg& Control(uint32_t slot) {
    return *reinterpret_cast<mlx5_wqe_ctrl_seg*>(queues->sends + size_t{slot} * kSlotBytes);
  }

  // Moves its next frame to the other end. False: there is none now.
  bool Move(End* to) {
    soft::OutFrame frame;
    if (!transmit_ || !Next(&frame)) return transmit_ = false;
    EXPECT_LE(source_.window().tail() - source_.window().head(), kWindow.requests);
    std::vector<uint8_t> payload(frame.payload_size);
    Scatter(payload.data(), Payload(frame), /*to_memory=*/false);
    frame.header.length = frame.body_size + frame.payload_size;
    EXPECT_TRUE(to->Take(frame, &payload));
    return true;
  }
  // Does what a device does that is asked to look at a queue pair in error.
  void Look() {
    requester_.Flush();
    responder_.Flush();
  }
  void Fail() override {
    if (!std::exchange(failed_, true)) Look();
  }
  bool failed() const { return failed_; }
  std::string error() const { return std::string(source_.error().message()); }

  const std::unique_ptr<QueueMemory, void (*)(QueueMemory*)> queues{QueueMemory::Map(),
                                                                    &QueueMemory::Unmap};
  SendQueue sends{queues->send_queue(), kQueuePair, kDriver, this};
  ReceiveQueue receives{queues->receive_queue()};
  CompletionQueue completions{queues->completion_queue(), kCompletionQueue, this};

 private:
  using Iovecs = std::vector<iovec>;

  void Ring(uint64_t) override {
    if (failed_) return requester_.Flush();
    transmit_ = true;
  }

  void Arm(uint64_t) override {}
  void ReceivesPosted(uint32_t, const uint32_t&) override {}

  soft::EventLoop& loop() override { return *loop_; }
  soft::MemoryAccess& memory() override { return *memory_; }
  void WantTransmit() override { transmit_ = true; }
  void DropRequestFrames() override {}
  uint64_t FirstUnwritten(uint64_t end) const override { return end; }
  void Stall(uint64_t) override {}
  bool stalled() const override { return false; }
  void CutLink() override {}
  void LoseDevice() override {}

  bool Next(soft::OutFrame* frame) {
    if (responder_.NextFrame(frame)) return true;
    if (failed_) return false;
    const bool found = requester_.NextFrame(frame);
    requester_.Settle();
    return found;
  }
  Iovecs Payload(const soft::OutFrame& frame) {
    Iovecs iovecs(soft::kMaxScatterGather);
    int used = frame.payload_size > 0 ? 1 : 0;
    if (frame.source == soft::PayloadSource::kRequest) {
      used = requester_.Gather(frame.index, frame.offset, frame.payload_size, iovecs.data(),
                               soft::kMaxScatterGather);
    } else {
      iovecs[0] = {reinterpret_cast<void*>(frame.index), frame.payload_size};
    }
    iovecs.resize(static_cast<size_t>(std::max(used, 0)));
    return iovecs;
  }
  static void Scatter(uint8_t* bytes, const Iovecs& iovecs, bool to_memory) {
    for (const iovec& part : iovecs) {
      std::memcpy(to_memory ? part.iov_base : bytes, to_memory ? bytes : part.iov_base,
                  part.iov_len);
      bytes += part.iov_len;
    }
  }

  bool Take(const soft::OutFrame& frame, std::vector<uint8_t>* payload) {
    const bool fine = frame.request() ? TakeRequest(frame, payload) : TakeAnswer(frame, payload);
    if (!failed_) requester_.Settle();
    return fine;
  }
  bool TakeRequest(const soft::OutFrame& frame, std::vector<uint8_t>* payload) {
    if (failed_) {
      responder_.Refuse();
      return true;
    }
    if (!responder_.OnRequest(frame.header, frame.body)) return false;
    Place(payload, [&](iovec* iovecs) {
      return responder_.Place(0, frame.payload_size, iovecs, soft::kMaxScatterGather);
    });
    return failed_ || responder_.OnRequestEnd();
  }
  bool TakeAnswer(const soft::OutFrame& frame, std::vector<uint8_t>* payload) {
    if (failed_) return true;
    const soft::FrameHeader& header = frame.header;
    switch (static_cast<soft::FrameType>(header.type)) {
      case soft::FrameType::kAck:
        return requester_.OnAck(header.sequence);
      case soft::FrameType::kNak:
        return requester_.OnNak(header.sequence, static_cast<soft::NakCode>(header.code));
      case soft::FrameType::kReceiverNotReady:
        return requester_.OnReceiverNotReady(header.sequence, header.immediate);
      case soft::FrameType::kAtomicResponse: {
        uint64_t value;
        std::memcpy(&value, frame.body, sizeof(value));
        return requester_.OnAtomicResponse(header.sequence, value);
      }
      default:
        break;
    }
    if (!requester_.OnReadResponse(header)) return false;
    Place(payload, [&](iovec* iovecs) {
      return requester_.PlaceReadResponse(0, frame.payload_size, iovecs, soft::kMaxScatterGather);
    });
    return failed_ || requester_.OnAnswerEnd();
  }
  template <typename Target>
  void Place(std::vector<uint8_t>* payload, const Target& target) {
    if (failed_ || payload->empty()) return;
    Iovecs iovecs(soft::kMaxScatterGather);
    iovecs.resize(static_cast<size_t>(target(iovecs.data())));
    Scatter(payload->data(), iovecs, /*to_memory=*/true);
  }

  soft::EventLoop* const loop_;
  Memory* const memory_;
  CompletionWriter writer_{queues->found_completions()};
  soft::ClientCompletions sink_{kQueuePair, &writer_, &writer_};
  soft::ClientSends source_{queues->found_sends(), &queues->records[MLX5_SND_DBR], kWindow};
  soft::ClientReceives receives_{queues->found_receives(), &queues->records[MLX5_RCV_DBR]};
  soft::Requester requester_{this, &source_, &sink_};
  soft::Responder responder_{this, &receives_, &sink_};
  bool transmit_ = false;
  bool failed_ = false;
};

class ClientQueuesTest : public ::testing::Test {
 protected:
  static constexpr uint32_t kBytes = 4096;

  ClientQueuesTest() {
    for (uint32_t i = 0; i < kBytes; ++i) bytes_[i] = static_cast<uint8_t>(i % 251);
    Restart();
  }

  void Restart(uint32_t initiator_depth = kReads) {
    client_ = std::make_unique<End>(loop_.get(), &memory_, initiator_depth);
    server_ = std::make_unique<End>(loop_.get(), &memory_);
  }

  uint64_t Address(uint32_t offset) { return reinterpret_cast<uint64_t>(bytes_.data() + offset); }
  ScatterGather Sge(uint32_t offset, uint32_t length) {
    return {Address(offset), length, Memory::kKey};
  }
  SendRequest Request(Opcode opcode, uint64_t wr_id, uint32_t offset = 0) {
    SendRequest request;
    request.wr_id = wr_id;
    request.opcode = opcode;
    request.remote_address = Address(offset);
    request.rkey = Memory::kKey;
    return request;
  }
  void Write(uint64_t wr_id) {
    ASSERT_TRUE(client_->Send(Request(Opcode::kWrite, wr_id, 2000), {Sge(0, 8)}).ok());
  }
  bool Same(uint32_t one, uint32_t other, uint32_t length) const {
    return std::equal(bytes_.begin() + one, bytes_.begin() + one + length, bytes_.begin() + other);
  }
  uint64_t Word(uint32_t offset) const {
    uint64_t word;
    std::memcpy(&word, bytes_.data() + offset, sizeof(word));
    return word;
  }

  void Turn() {
    loop_->Progress();
    while (client_->Move(server_.get()) || server_->Move(client_.get())) {
    }
  }

  const std::unique_ptr<soft::EventLoop> loop_ = soft::EventLoop::Create().value();
  alignas(8) std::array<uint8_t, kBytes> bytes_;
  Memory memory_{absl::MakeSpan(bytes_)};
  std::unique_ptr<End> client_;
  std::unique_ptr<End> server_;
};

TEST_F(ClientQueuesTest, shouldCarrySendsToReceives) {
  for (uint32_t i = 0; i < 3; ++i) {
    const ScatterGather parts[] = {Sge(1000 + 100 * i, 30), Sge(1030 + 100 * i, 70)};
    ASSERT_TRUE(server_->Receive(50 + i, parts).ok());
  }
  const ScatterGather from[] = {Sge(0, 10), Sge(10, 50), Sge(60, 40)};
  ASSERT_TRUE(client_->Send(Request(Opcode::kSend, 1), from).ok());
  SendRequest immediate = Request(Opcode::kSendWithImmediate, 2);
  immediate.immediate = 77;
  immediate.inline_data = true;
  ASSERT_TRUE(client_->Send(immediate, {Sge(0, 90)}).ok());
  SendRequest invalidate = Request(Opcode::kSendWithInvalidate, 3);
  invalidate.invalidate_rkey = Memory::kKey;
  ASSERT_TRUE(client_->Send(invalidate, {}).ok());
  Turn();
  EXPECT_THAT(client_->Poll(),
              ElementsAre(Pair(1, kSuccess), Pair(2, kSuccess), Pair(3, kSuccess)));
  const Completion first = server_->PollOne(), second = server_->PollOne(),
                   third = server_->PollOne();
  EXPECT_EQ(std::make_pair(first.wr_id, first.byte_len), std::make_pair(uint64_t{50}, 100u));
  EXPECT_TRUE(Same(0, 1000, 100));
  EXPECT_EQ(std::make_pair(second.wr_id, second.byte_len), std::make_pair(uint64_t{51}, 90u));
  EXPECT_TRUE(second.has_immediate && second.immediate == 77);
  EXPECT_TRUE(Same(0, 1100, 90));
  EXPECT_TRUE(third.has_invalidate && third.immediate == Memory::kKey);
  EXPECT_TRUE(memory_.invalidated);
}

TEST_F(ClientQueuesTest, shouldReachThePeersMemory) {
  ASSERT_TRUE(server_->Receive(50, {}).ok());
  SendRequest write = Request(Opcode::kWriteWithImmediate, 1, 1000);
  write.immediate = 78;
  ASSERT_TRUE(client_->Send(write, {Sge(0, 100)}).ok());
  ASSERT_TRUE(client_->Send(Request(Opcode::kRead, 2, 0), {Sge(1200, 60), Sge(1260, 40)}).ok());
  SendRequest add = Request(Opcode::kFetchAndAdd, 3, 16);
  add.compare_add = 5;
  SendRequest swap = Request(Opcode::kCompareAndSwap, 4, 16);
  const uint64_t before = Word(16);
  swap.compare_add = before + 5;
  swap.swap = 9;
  ASSERT_TRUE(client_->Send(add, {Sge(1400, 8)}).ok());
  ASSERT_TRUE(client_->Send(swap, {Sge(1408, 8)}).ok());
  Turn();
  const CompletionOpcode opcodes[] = {CompletionOpcode::kWrite, CompletionOpcode::kRead,
                                      CompletionOpcode::kFetchAndAdd,
                                      CompletionOpcode::kCompareAndSwap};
  for (uint64_t i = 0; i < std::size(opcodes); ++i) {
    const Completion completion = client_->PollOne();
    EXPECT_EQ(completion.wr_id, i + 1);
    EXPECT_EQ(completion.status, kSuccess);
    EXPECT_EQ(completion.opcode, opcodes[i]);
    EXPECT_TRUE(completion.opcode != CompletionOpcode::kRead || completion.byte_len == 100);
  }
  EXPECT_TRUE(Same(0, 1000, 16) && Same(24, 1024, 76) && Same(0, 1200, 16) && Same(24, 1224, 76));
  EXPECT_EQ(Word(1400), before);
  EXPECT_EQ(Word(1408), before + 5);
  EXPECT_EQ(Word(16), 9u);
  const Completion received = server_->PollOne();
  EXPECT_EQ(received.opcode, CompletionOpcode::kReceiveWithImmediate);
  EXPECT_TRUE(received.has_immediate && received.immediate == 78);
}

TEST_F(ClientQueuesTest, shouldRepeatWhatItReadFirst) {
  SendRequest inlined = Request(Opcode::kSend, 1);
  inlined.inline_data = true;
  ASSERT_TRUE(client_->Send(inlined, {Sge(0, 80)}).ok());
  ASSERT_TRUE(client_->Send(Request(Opcode::kSend, 2), {Sge(100, 80)}).ok());
  Turn();  // no receive: both are to be sent again
  EXPECT_THAT(client_->Poll(), IsEmpty());
  std::memset(client_->queues->sends, 0xff, sizeof(client_->queues->sends));
  ASSERT_TRUE(server_->Receive(50, {Sge(1000, 80)}).ok());
  ASSERT_TRUE(server_->Receive(51, {Sge(1100, 80)}).ok());
  std::vector<End::Told> told;
  while (told.size() < 2) {
    Turn();
    for (const End::Told& one : client_->Poll()) told.push_back(one);
  }
  EXPECT_THAT(told, ElementsAre(Pair(1, kSuccess), Pair(2, kSuccess)));
  EXPECT_TRUE(Same(0, 1000, 80) && Same(100, 1100, 80));
}

// Counters have 16 bits, and requests of two slots end behind the end of the queue.
TEST_F(ClientQueuesTest, shouldGoOnAroundTheEndsOfQueueAndCounters) {
  constexpr uint64_t kRounds = 20'000;
  SendRequest inlined = Request(Opcode::kWrite, 0, 1000);
  inlined.inline_data = true;
  for (uint64_t i = 0; i < kRounds; ++i) {
    bytes_[i % 80] = static_cast<uint8_t>(i);
    inlined.wr_id = 3 * i;
    ASSERT_TRUE(client_->Send(inlined, {Sge(0, 80)}).ok());  // slots: 2
    Write(3 * i + 1);
    inlined.wr_id = 3 * i + 2;
    ASSERT_TRUE(client_->Send(inlined, {Sge(0, 90)}).ok());  // slots: 2
    Turn();
    ASSERT_THAT(client_->Poll(), ElementsAre(Pair(3 * i, kSuccess), Pair(3 * i + 1, kSuccess),
                                             Pair(3 * i + 2, kSuccess)));
    ASSERT_TRUE(Same(0, 1000, 90));
  }
}

TEST_F(ClientQueuesTest, shouldGoOnWhenThereIsRoomInTheWindow) {
  for (uint64_t i = 0; i < kEntries; ++i) Write(i);
  Turn();
  const std::vector<End::Told> told = client_->Poll();
  ASSERT_EQ(told.size(), kEntries);
  for (uint64_t i = 0; i < kEntries; ++i) EXPECT_EQ(told[i], End::Told(i, kSuccess));
}

TEST_F(ClientQueuesTest, shouldTellOfNoSuccessThatIsNotSignalled) {
  Write(1);
  Write(2);
  client_->Control(0).fm_ce_se = 0;
  Turn();
  EXPECT_THAT(client_->Poll(), ElementsAre(Pair(2, kSuccess)));
  Write(3);
  client_->Control(2).fm_ce_se = 0;
  client_->Fail();
  EXPECT_THAT(client_->Poll(), ElementsAre(Pair(3, kFlushError)));
}

TEST_F(ClientQueuesTest, shouldFailAMalformedRequestInItsTurn) {
  for (uint64_t i = 1; i <= 3; ++i) Write(i);
  client_->Control(1).opmod_idx_opcode = htobe32(1u << 8 | MLX5_OPCODE_UMR);
  client_->Control(2).opmod_idx_opcode = htobe32(2u << 8 | MLX5_OPCODE_NOP);
  Turn();
  EXPECT_THAT(client_->Poll(),
              ElementsAre(Pair(1, kSuccess), Pair(2, kLocalQpError), Pair(3, kFlushError)));
  EXPECT_THAT(client_->error(), HasSubstr("opcode 37"));
}

TEST_F(ClientQueuesTest, shouldReadNothingBehindARequestWithoutAnEnd) {
  for (uint64_t i = 1; i <= 3; ++i) Write(i);
  client_->Control(1).opmod_idx_opcode = htobe32(7u << 8 | MLX5_OPCODE_SEND);
  Turn();
  Write(4);
  client_->Look();
  EXPECT_THAT(client_->Poll(), ElementsAre(Pair(1, kSuccess), Pair(2, kLocalQpError)));
  EXPECT_THAT(client_->error(), HasSubstr("the request at counter 1 says 7"));
}

TEST_F(ClientQueuesTest, shouldRefuseMoreThanItKeepsOfARequest) {
  const std::vector<ScatterGather> many(kWindow.sges + 1, Sge(0, 8));
  ASSERT_TRUE(client_->Send(Request(Opcode::kWrite, 1, 2000), many).ok());
  Turn();
  EXPECT_THAT(client_->Poll(), ElementsAre(Pair(1, kLocalQpError)));
  EXPECT_THAT(client_->error(), HasSubstr("a request of 4 buffers, at most 3"));

  Restart();
  SendRequest inlined = Request(Opcode::kWrite, 1, 2000);
  inlined.inline_data = true;
  ASSERT_TRUE(client_->Send(inlined, {Sge(0, kWindow.inline_bytes + 1)}).ok());
  Turn();
  EXPECT_THAT(client_->Poll(), ElementsAre(Pair(1, kLocalQpError)));
  EXPECT_THAT(client_->error(), HasSubstr("inline data of 101 bytes, at most 100"));

  Restart();
  ASSERT_TRUE(client_->Send(inlined, {Sge(0, 8)}).ok());
  client_->Control(0).opmod_idx_opcode = htobe32(MLX5_OPCODE_RDMA_READ);
  Turn();
  EXPECT_THAT(client_->Poll(), ElementsAre(Pair(1, kLocalQpError)));
  EXPECT_THAT(client_->error(), HasSubstr("inline data where an answer is to be stored"));
}

TEST_F(ClientQueuesTest, shouldRefuseReadsThatThePeerDoesNotAnswer) {
  Restart(/*initiator_depth=*/0);
  Write(1);
  ASSERT_TRUE(client_->Send(Request(Opcode::kRead, 2), {Sge(1000, 8)}).ok());
  Turn();
  EXPECT_THAT(client_->Poll(), ElementsAre(Pair(1, kSuccess), Pair(2, kLocalQpError)));
}

TEST_F(ClientQueuesTest, shouldFlushWhatIsQueuedAndWhatIsPostedAfterIt) {
  ASSERT_TRUE(client_->Receive(50, {Sge(0, 8)}).ok());
  Write(1);
  ASSERT_TRUE(client_->Send(Request(Opcode::kWrite, 2), std::vector(4, Sge(0, 8))).ok());
  Write(3);
  client_->Fail();
  EXPECT_THAT(client_->Poll(), ElementsAre(Pair(1, kFlushError), Pair(2, kFlushError),
                                           Pair(3, kFlushError), Pair(50, kFlushError)));
  Write(4);
  EXPECT_THAT(client_->Poll(), ElementsAre(Pair(4, kFlushError)));
  ASSERT_TRUE(client_->Receive(51, {}).ok());
  client_->Look();
  EXPECT_THAT(client_->Poll(), ElementsAre(Pair(51, kFlushError)));
  Turn();
  EXPECT_THAT(client_->Poll(), IsEmpty());
}

// A client that posts as fast as its requests are flushed.
struct Endless final : soft::SendSource, soft::CompletionSink {
  Endless() : soft::SendSource(2, 1, 0) {}
  bool Fetch() override {
    window().Push({}) = {};
    return true;
  }
  uint32_t Waiting() override { return 5; }
  bool CompleteSend(const soft::SendWork&, const Completion&) override { return ++completed > 0; }
  bool CompleteReceive(const soft::ReceiveWork&, const Completion&) override { return false; }
  int completed = 0;
};

TEST_F(ClientQueuesTest, shouldFlushNoMoreThanWasQueuedWhenItBegan) {
  Endless endless;
  soft::Requester requester(client_.get(), &endless, &endless);
  requester.Flush();
  EXPECT_EQ(endless.completed, 5);
}

TEST_F(ClientQueuesTest, shouldFlushWhatIsInFlight) {
  ASSERT_TRUE(client_->Send(Request(Opcode::kSend, 1), {Sge(0, 8)}).ok());
  Turn();  // no receive
  Write(2);
  client_->Fail();
  EXPECT_THAT(client_->Poll(), ElementsAre(Pair(1, kFlushError), Pair(2, kFlushError)));
}

TEST_F(ClientQueuesTest, shouldFailWhenItsCompletionsAreOverrun) {
  for (uint64_t i = 0; i < kEntries; ++i) Write(i);
  Turn();
  EXPECT_FALSE(client_->failed());
  Write(kEntries);
  Write(kEntries + 1);
  Turn();
  EXPECT_TRUE(client_->failed());
  EXPECT_EQ(client_->Poll().size(), kEntries);
}

TEST_F(ClientQueuesTest, shouldNotBelieveAReceiveRecordThatIsTooFarAhead) {
  for (const Opcode opcode : {Opcode::kSend, Opcode::kWriteWithImmediate}) {
    Restart();
    server_->queues->wr_ids[0] = 50;
    StoreRecord(&server_->queues->records[MLX5_RCV_DBR], kReceiveSlots + 1);
    ASSERT_TRUE(client_->Send(Request(opcode, 1, 2000), {Sge(0, 8)}).ok());
    Turn();
    EXPECT_THAT(server_->Poll(), ElementsAre(Pair(50, kLocalQpError)));
    EXPECT_THAT(client_->Poll(), ElementsAre(Pair(1, CompletionStatus::kRemoteOperationError)));
  }
}

// Whatever a client writes, and while its requests are in flight, stays its own trouble; sanitizers
// look.
TEST_F(ClientQueuesTest, shouldBearAnything) {
  constexpr int kTries = 2'000;
  std::mt19937 random(20261123);
  int succeeded = 0;
  for (int i = 0; i < kTries; ++i) {
    Restart();
    ASSERT_TRUE(server_->Receive(50, {Sge(1000, 90)}).ok());
    for (int round = 0; round < 4; ++round) {
      SendRequest request = Request(static_cast<Opcode>(random() % kOpcodeCount), 1, 2000);
      request.inline_data = !IsAnswered(request.opcode) && random() % 2 == 0;
      static_cast<void>(client_->Send(request, {Sge(0, IsAtomic(request.opcode) ? 8u : 90u)}));
      for (End* end : {client_.get(), server_.get()}) {
        QueueMemory& queues = *end->queues;
        for (uint8_t& byte : queues.sends) {
          if (random() % 256 == 0) byte = static_cast<uint8_t>(random());
        }
        if (random() % 8 == 0) queues.receives[random() % sizeof(queues.receives)] ^= 1;
        if (random() % 16 == 0) StoreRecord(&queues.records[random() % 2], random() % 20);
      }
      Turn();
      for (const auto& [wr_id, status] : client_->Poll()) succeeded += status == kSuccess ? 1 : 0;
    }
  }
  EXPECT_GT(succeeded, kTries / 10);
}

// Slot 0 may be another queue pair's, whose message is still written to it.
TEST(SharedReceivesTest, shouldCompleteNoSlotThatNobodyTook) {
  alignas(64) std::array<uint8_t, 4 * 32> slots = {};
  __be32 record = htobe32(9);  // receives are posted, and there are 3 slots for them
  SharedReceiveReader reader({slots.data(), &record, 4, 32});
  int taken = 0;
  soft::SharedReceives source(&reader, 1, [&] { ++taken; });
  ASSERT_TRUE(source.Fetch());
  EXPECT_EQ(taken, 1);
  const soft::ReceiveWork work = source.window()[source.window().head()];
  EXPECT_TRUE(work.malformed);
  EXPECT_EQ(work.id, soft::kNoSlot);

  const std::unique_ptr<QueueMemory, void (*)(QueueMemory*)> memory(QueueMemory::Map(),
                                                                    &QueueMemory::Unmap);
  CompletionWriter writer(memory->found_completions());
  soft::ClientCompletions completions(kQueuePair, &writer, &writer);
  completions.Share(5);
  Completion completion;
  completion.status = kLocalQpError;
  EXPECT_TRUE(completions.CompleteReceive(work, completion));
  EXPECT_EQ(memory->entries[sizeof(mlx5_cqe64) - 1] >> 4, MLX5_CQE_INVALID);
}

// Its queue pair is destroyed, or reset, in the middle of a message.
TEST(SharedReceivesTest, shouldGiveBackWhatNoMessageCompleted) {
  alignas(64) std::array<uint8_t, 4 * 32> slots = {};
  const __be32 record = htobe32(2);
  SharedReceiveReader reader({slots.data(), &record, 4, 32});
  {
    soft::SharedReceives source(&reader, 1, [] {});
    ASSERT_TRUE(source.Fetch());
    EXPECT_EQ(reader.Waiting(), 1u);
  }
  EXPECT_EQ(reader.Waiting(), 2u);
  soft::SharedReceives source(&reader, 1, [] {});
  ASSERT_TRUE(source.Fetch());
  EXPECT_EQ(source.window()[source.window().head()].id, 0u);
  source.window().Pop();  // its message has completed
  EXPECT_EQ(reader.Waiting(), 1u);
}

}  // namespace
}  // namespace baton::verbs::mlx5
