// Peers that do not keep to the protocol: they are dropped, and nobody else notices.
#include "lib/nic/wire.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "lib/base/clock.h"
#include "lib/base/file_descriptor.h"
#include "lib/verbs/soft/soft_device.h"
#include "tests/lib/verbs/verbs_harness.h"

namespace baton::verbs::soft {
namespace {

using testing::AwaitEvent;
using testing::Buffer;
using testing::kAllAccess;
using testing::Side;

FrameHeader Header(FrameType type, uint8_t flags, uint32_t length, uint32_t sequence = 0) {
  return {kWireVersion, static_cast<uint8_t>(type), flags, 0, length, sequence, 0};
}

template <typename T>
std::string Bytes(const T& value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
}

std::string ConnectRequest(uint8_t retry_count = 7) {
  ConnectHead head = {};
  head.magic = kWireMagic;
  head.responder_resources = head.initiator_depth = 4;
  head.retry_count = retry_count;
  head.rnr_retry_count = 7;
  return Bytes(Header(FrameType::kConnectRequest, 0, sizeof(head))) + Bytes(head);
}

std::string ReadyToUse() { return Bytes(Header(FrameType::kReadyToUse, 0, 0)); }

class SoftWire : public ::testing::Test {
 protected:
  explicit SoftWire(const SoftDeviceOptions& options = Options())
      : server(CreateSoftDevice(options).value()) {}

  FileDescriptor Dial() {
    FileDescriptor fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(listener->address().port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    return fd;
  }

  static void Write(int fd, const std::string& bytes) {
    EXPECT_EQ(send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }

  static bool IsClosed(int fd) {
    char sink[4096];
    ssize_t count;
    do {
      count = recv(fd, sink, sizeof(sink), MSG_DONTWAIT);
    } while (count > 0);
    return count == 0 || (errno != EAGAIN && errno != EINTR);
  }
  // Turns the server until it closes `fd`.
  bool AwaitClose(int fd) {
    return Turn([fd] { return IsClosed(fd); });
  }

  template <typename Done>
  bool Turn(Done done) {
    const uint64_t deadline = MonotonicNanoseconds() + 10'000'000'000;
    while (!done()) {
      if (MonotonicNanoseconds() > deadline) return false;
      server.Turn();
    }
    return true;
  }

  // Turns the server until `fd` has a frame with so many bytes behind its header, and takes it.
  FrameHeader ReadHeader(int fd, size_t more = 0) {
    struct {
      FrameHeader header;
      char more[64];
    } frame = {};
    const auto size = static_cast<ssize_t>(sizeof(FrameHeader) + more);
    EXPECT_TRUE(Turn([&] {
      return recv(fd, &frame, static_cast<size_t>(size), MSG_DONTWAIT | MSG_PEEK) == size;
    }));
    EXPECT_EQ(recv(fd, &frame, static_cast<size_t>(size), 0), size);
    return frame.header;
  }

  // A raw peer with an established connection; the server side's id is server.id.
  FileDescriptor Establish(uint8_t retry_count = 7) {
    FileDescriptor fd = Dial();
    Write(fd.get(), ConnectRequest(retry_count));
    EXPECT_TRUE(Turn([&] { return !server.events.empty(); }));
    server.id = std::move(server.events.front().new_id);
    server.events.clear();
    EXPECT_TRUE(server.id->Accept(server.queue_pair.get(), {}).ok());
    EXPECT_EQ(ReadHeader(fd.get(), sizeof(ConnectHead)).type,
              static_cast<uint8_t>(FrameType::kConnectReply));
    Write(fd.get(), ReadyToUse());
    EXPECT_TRUE(Turn([&] { return !server.events.empty(); }));
    EXPECT_EQ(server.events.front().type, CmEventType::kEstablished);
    server.events.clear();
    return fd;
  }

  // A proper client is still served.
  void ExpectService() {
    server.id.reset();
    server.events.clear();
    server.queue_pair = server.MakeQueuePair();
    Side client(CreateSoftDevice({}).value());
    client.id =
        client.device->Connect({"127.0.0.1", listener->address().port}, client.queue_pair.get(), {})
            .value();
    CmEvent event;
    ASSERT_TRUE(AwaitEvent(server, client, CmEventType::kConnectRequest, &event));
    ASSERT_TRUE(event.new_id->Accept(server.queue_pair.get(), {}).ok());
    server.id = std::move(event.new_id);
    ASSERT_TRUE(AwaitEvent(client, server, CmEventType::kEstablished, &event));
  }

  static SoftDeviceOptions Options() {
    SoftDeviceOptions options;
    options.handshake_timeout_ms = 50;
    options.max_half_open = 4;
    options.ack_timeout_ms = 100;
    return options;
  }

  Side server;
  Buffer memory{server.device.get(), 1 << 20, kAllAccess};
  std::unique_ptr<Listener> listener = server.device->Listen({"127.0.0.1", 0}, 64).value();
};

TEST_F(SoftWire, shouldDropAPeerThatSpeaksAnotherProtocol) {
  FileDescriptor fd = Dial();
  Write(fd.get(), "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_TRUE(AwaitClose(fd.get()));
  EXPECT_TRUE(server.events.empty());
  ExpectService();
}

TEST_F(SoftWire, shouldDropAnotherVersionOfTheProtocol) {
  FileDescriptor fd = Dial();
  std::string request = ConnectRequest();
  request[0] = kWireVersion + 1;
  Write(fd.get(), request);
  EXPECT_TRUE(AwaitClose(fd.get()));
  EXPECT_TRUE(server.events.empty());
}

TEST_F(SoftWire, shouldDropARequestWhoseLengthsDoNotFit) {
  for (const size_t at : {size_t{4}, sizeof(FrameHeader) + 12}) {
    FileDescriptor fd = Dial();
    std::string request = ConnectRequest();
    request[at] = static_cast<char>(request[at] + 1);
    Write(fd.get(), request + std::string(300, 'x'));
    EXPECT_TRUE(AwaitClose(fd.get()));
  }
  EXPECT_TRUE(server.events.empty());
  ExpectService();
}

// Each answer to an offer waits until the peer reads.
TEST_F(SoftWire, shouldDropAPeerThatOffersMemoryASecondTime) {
  const FileDescriptor fd = Establish();
  const std::string offer =
      Bytes(Header(FrameType::kMemoryOffer, 0, sizeof(MemoryOffer))) + Bytes(MemoryOffer{});
  Write(fd.get(), offer);
  EXPECT_EQ(static_cast<FrameType>(ReadHeader(fd.get()).type), FrameType::kMemoryRefused);
  Write(fd.get(), offer);
  EXPECT_TRUE(AwaitClose(fd.get()));
  ExpectService();
}

// The peer reads what the memory held when the queue pair ended, or nothing.
TEST_F(SoftWire, shouldAnswerAReadWithNothingThatWasWrittenAfterItsQueuePairEnded) {
  constexpr uint32_t kBytes = 8 << 20;
  const FileDescriptor fd = Establish();
  Buffer memory(server.device.get(), kBytes, kAllAccess);
  std::memset(memory.data(), 'a', kBytes);
  Write(fd.get(), Bytes(Header(FrameType::kRead, kFirst | kLast, sizeof(ReadHead))) +
                      Bytes(ReadHead{memory.address(), memory.region->rkey(), kBytes}));
  std::vector<char> bytes(1 << 16);
  const auto has_answered = [&] {
    return recv(fd.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_PEEK) > 0;
  };
  ASSERT_TRUE(Turn(has_answered));
  for (int i = 0; i < 1000; ++i) server.Turn();  // the socket is full
  ASSERT_TRUE(server.queue_pair->SetError().ok());
  std::memset(memory.data(), 'z', kBytes);
  size_t read = 0, late = 0;
  for (int idle = 0; idle < 10'000; ++idle) {
    server.Turn();
    const ssize_t count = recv(fd.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (count <= 0) continue;
    idle = 0;
    read += static_cast<size_t>(count);
    late += static_cast<size_t>(std::count(bytes.begin(), bytes.begin() + count, 'z'));
  }
  EXPECT_GT(read, 0u);
  EXPECT_LT(read, kBytes);
  EXPECT_EQ(late, 0u);
}

TEST_F(SoftWire, shouldDropAPeerThatSaysNothingInTime) {
  FileDescriptor silent = Dial();
  FileDescriptor halting = Dial();
  Write(halting.get(), ConnectRequest().substr(0, 20));
  EXPECT_TRUE(AwaitClose(silent.get()));
  EXPECT_TRUE(AwaitClose(halting.get()));
  EXPECT_TRUE(server.events.empty());
}

TEST_F(SoftWire, shouldServeBehindMoreSilentPeersThanItHolds) {
  std::vector<FileDescriptor> silent;
  for (int i = 0; i < 12; ++i) silent.push_back(Dial());
  ExpectService();
}

// Its peers have a minute for their request.
class PatientSoftWire : public SoftWire {
 protected:
  PatientSoftWire() : SoftWire(PatientOptions()) {}

  static SoftDeviceOptions PatientOptions() {
    SoftDeviceOptions options = Options();
    options.handshake_timeout_ms = 60'000;
    return options;
  }
};

TEST_F(PatientSoftWire, shouldCloseTheOldestSilentPeerForAnotherOne) {
  std::vector<FileDescriptor> silent;
  for (uint32_t i = 0; i < Options().max_half_open; ++i) silent.push_back(Dial());
  ExpectService();
  EXPECT_TRUE(AwaitClose(silent[0].get()));
  for (size_t i = 1; i < silent.size(); ++i) EXPECT_FALSE(IsClosed(silent[i].get())) << i;
}

TEST_F(SoftWire, shouldRefuseDataBeforeTheConnection) {
  FileDescriptor fd = Dial();
  Write(fd.get(), Bytes(Header(FrameType::kSend, kFirst | kLast, 0)));
  EXPECT_TRUE(AwaitClose(fd.get()));
  ExpectService();
}

TEST_F(SoftWire, shouldAcceptFramesThatArriveByteByByte) {
  FileDescriptor fd = Dial();
  for (const char byte : ConnectRequest()) {
    Write(fd.get(), std::string(1, byte));
    server.Turn();
  }
  ASSERT_TRUE(Turn([&] { return !server.events.empty(); }));
  server.id = std::move(server.events.front().new_id);
  server.events.clear();
  ASSERT_TRUE(testing::PostReceive(*server.queue_pair, 1, {memory.Sge(0, 64)}).ok());
  ASSERT_TRUE(server.id->Accept(server.queue_pair.get(), {}).ok());
  for (const char byte :
       ReadyToUse() + Bytes(Header(FrameType::kSend, kFirst | kLast, 5)) + "slow!") {
    Write(fd.get(), std::string(1, byte));
    server.Turn();
  }
  ASSERT_TRUE(Turn([&] { return !server.completions.empty(); }));
  EXPECT_EQ(server.completions.front().byte_len, 5u);
  EXPECT_EQ(memory.Text(0, 5), "slow!");
}

TEST_F(SoftWire, shouldDisconnectAPeerThatBreaksTheProtocolLater) {
  const std::string broken[] = {
      Bytes(Header(FrameType::kSend, kFirst | kLast, kMaxSegment + 1)),
      Bytes(Header(FrameType::kSend, kFirst, 100)) + std::string(100, 'x'),
      Bytes(Header(FrameType::kSend, kLast, 8)) + std::string(8, 'x'),
      Bytes(Header(FrameType::kSend, kFirst | kLast, 0, 77)),
      Bytes(Header(static_cast<FrameType>(99), 0, 0)),
      Bytes(Header(FrameType::kAck, 0, 0)),
      Bytes(Header(FrameType::kAck, 0, 4)),
      Bytes(Header(FrameType::kNak, 0, 0)),
      Bytes(Header(FrameType::kReadResponse, kFirst | kLast, 0)),
      Bytes(Header(FrameType::kReceiverNotReady, 0, 0, 5)),
      Bytes(Header(FrameType::kWrite, kFirst | kLast, sizeof(WriteHead))) +
          Bytes(WriteHead{memory.address(), memory.region->rkey(), 0, 100}),
      Bytes(Header(FrameType::kConnectReply, 0, 0)),
      ConnectRequest(),
      Bytes(Header(FrameType::kReadyToUse, 0, 0)),
      Bytes(Header(FrameType::kAck, 0xff, 0)),
  };
  int index = 0;
  for (const std::string& bytes : broken) {
    server.id.reset();
    server.queue_pair = server.MakeQueuePair();
    ASSERT_TRUE(testing::PostReceive(*server.queue_pair, 1, {memory.Sge(0, 64)}).ok());
    FileDescriptor fd = Establish();
    Write(fd.get(), bytes);
    ASSERT_TRUE(AwaitClose(fd.get())) << index;
    ASSERT_TRUE(Turn([&] { return !server.events.empty(); })) << index;
    EXPECT_EQ(server.events.front().type, CmEventType::kDisconnected) << index;
    server.events.clear();
    ++index;
  }
  ExpectService();
}

class SoftWireAnswers : public SoftWire {
 protected:
  static std::string Answer(FrameType type, uint32_t sequence, const std::string& body = "") {
    return Bytes(Header(type, 0, static_cast<uint32_t>(body.size()), sequence)) + body;
  }
  void ExpectStatuses(const std::vector<CompletionStatus>& expected) {
    EXPECT_TRUE(Turn([&] { return server.completions.size() >= expected.size(); }));
    std::vector<CompletionStatus> statuses;
    for (const Completion& completion : server.completions) statuses.push_back(completion.status);
    EXPECT_EQ(statuses, expected);
  }
  // Makes the server's end of `fd` take no more than a few KiB ahead of its peer.
  static void Narrow(int fd) {
    const auto port = [](int socket, decltype(&getpeername) name) -> in_port_t {
      sockaddr_in address = {};
      socklen_t size = sizeof(address);
      return name(socket, reinterpret_cast<sockaddr*>(&address), &size) == 0 ? address.sin_port : 0;
    };
    const int least = 0;  // the kernel takes its least for it
    int narrowed = 0;
    for (int end = 0; end < 1024; ++end) {
      if (port(end, &getpeername) != port(fd, &getsockname)) continue;
      EXPECT_EQ(setsockopt(end, SOL_SOCKET, SO_SNDBUF, &least, sizeof(least)), 0);
      ++narrowed;
    }
    ASSERT_EQ(narrowed, 1);
  }
  // Asks for 4 MiB of answers, of which the sockets hold a small part. Answers go before requests,
  // so the server begins none from then on, until the peer reads.
  void Clog(int fd, const std::string& behind = "") {
    ASSERT_NO_FATAL_FAILURE(Narrow(fd));
    const int fixed = 32 << 10;  // a buffer of a chosen size does not grow
    ASSERT_EQ(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &fixed, sizeof(fixed)), 0);
    const std::string all =
        Bytes(ReadHead{memory.address(), memory.region->rkey(), uint32_t{1 << 20}});
    std::string reads;
    for (uint32_t i = 0; i < 4; ++i) {
      reads += Bytes(Header(FrameType::kRead, kFirst | kLast, sizeof(ReadHead), i)) + all;
    }
    Write(fd, reads + behind);
  }
  static FrameType TypeOf(const std::string& frame) { return static_cast<FrameType>(frame[1]); }
};

// Its inline data, or the memory of another request in its slot, would be sent in its place.
TEST_F(SoftWireAnswers, shouldDropAPeerThatAnswersWhatItCannotHaveRead) {
  for (const std::string& answer :
       {Answer(FrameType::kAck, 0), Answer(FrameType::kNak, 1),
        Answer(FrameType::kReceiverNotReady, 1), Answer(FrameType::kReadResponse, 1),
        Answer(FrameType::kAtomicResponse, 1, std::string(8, 'a'))}) {
    const Opcode behind = TypeOf(answer) == FrameType::kReadResponse     ? Opcode::kRead
                          : TypeOf(answer) == FrameType::kAtomicResponse ? Opcode::kFetchAndAdd
                                                                         : Opcode::kSend;
    server.id.reset();
    server.queue_pair = server.MakeQueuePair();
    FileDescriptor fd = Establish();
    ASSERT_NO_FATAL_FAILURE(Narrow(fd.get()));
    // Both are generated in one batch, of which the socket takes a part.
    const std::vector<ScatterGather> most(3, memory.Sge(0, 256 << 10));
    ASSERT_TRUE(
        testing::PostSend(*server.queue_pair, testing::Request(Opcode::kSend, 1), most).ok());
    ASSERT_TRUE(testing::PostSend(*server.queue_pair, testing::Request(behind, 2),
                                  {memory.Sge(0, sizeof(uint64_t))})
                    .ok());
    server.Turn();
    Write(fd.get(), answer);
    EXPECT_TRUE(AwaitClose(fd.get()));
    ExpectStatuses({CompletionStatus::kFlushError, CompletionStatus::kFlushError});
    server.completions.clear();
    server.events.clear();
  }
  ExpectService();
}

TEST_F(SoftWireAnswers, shouldTryAgainBeforeARequestThatHasFailedHere) {
  server.queue_pair = server.MakeQueuePair();
  FileDescriptor fd = Establish();
  ASSERT_TRUE(testing::PostSend(*server.queue_pair, testing::Request(Opcode::kSend, 1), {}).ok());
  ScatterGather foreign = memory.Sge(0, 8);
  foreign.lkey ^= 0x5555;
  ASSERT_TRUE(
      testing::PostSend(*server.queue_pair, testing::Request(Opcode::kSend, 2), {foreign}).ok());
  EXPECT_EQ(ReadHeader(fd.get()).sequence, 0u);
  Write(fd.get(), Answer(FrameType::kReceiverNotReady, 0));
  EXPECT_EQ(ReadHeader(fd.get()).sequence, 0u);
  Write(fd.get(), Answer(FrameType::kAck, 0));
  ExpectStatuses({CompletionStatus::kSuccess, CompletionStatus::kLocalProtectionError});
}

// The queue pair fails, and its requests are flushed, while an answer is dealt with.
TEST_F(SoftWireAnswers, shouldBearAnOverrunAmongTheRequestsThatAnAnswerAcknowledges) {
  for (const std::string& answer : {Answer(FrameType::kAck, 3), Answer(FrameType::kNak, 3),
                                    Answer(FrameType::kReceiverNotReady, 3),
                                    Answer(FrameType::kAtomicResponse, 3, "answered")}) {
    SCOPED_TRACE(static_cast<int>(answer[1]));
    const bool atomic = TypeOf(answer) == FrameType::kAtomicResponse;
    const std::unique_ptr<CompletionQueue> small = server.device->CreateCompletionQueue(2).value();
    QueuePairOptions options;
    options.send_queue = small.get();
    options.receive_queue = server.queue.get();
    options.max_send_requests = options.max_receive_requests = 8;
    options.max_scatter_gather = 1;
    server.queue_pair = server.device->CreateQueuePair(options).value();
    FileDescriptor fd = Establish();
    memory.Fill(0, "as it was");
    for (uint64_t i = 0; i < 4; ++i) {
      const Opcode opcode = i == 3 && atomic ? Opcode::kFetchAndAdd : Opcode::kSend;
      ASSERT_TRUE(
          testing::PostSend(*server.queue_pair, testing::Request(opcode, i), {memory.Sge(0, 8)})
              .ok());
    }
    for (uint32_t i = 0; i < 3; ++i) EXPECT_EQ(ReadHeader(fd.get(), 8).sequence, i);
    EXPECT_EQ(ReadHeader(fd.get(), 0).sequence, 3u);
    Write(fd.get(), answer);
    EXPECT_TRUE(Turn([&] { return server.queue_pair->state() == QueuePairState::kError; }));
    EXPECT_EQ(memory.Text(0, 9), "as it was");
    Completion taken[8];
    EXPECT_EQ(small->Poll(absl::MakeSpan(taken)).status().code(), absl::StatusCode::kDataLoss);
    EXPECT_TRUE(testing::PostSend(*server.queue_pair, testing::Request(Opcode::kSend, 9), {}).ok());
    server.id.reset();
    server.queue_pair.reset();
  }
}

// A peer that has failed names the first message that it has not executed. One that names a later
// one says of a message that never arrived that it was executed.
TEST_F(SoftWireAnswers, shouldNameTheMessageThatItHasNotExecutedWhenItHasFailed) {
  for (const std::string& first :
       {Bytes(Header(FrameType::kSend, kFirst | kLast, 100)) + std::string(50, 'x'),
        Bytes(Header(FrameType::kSend, kFirst | kLast, 0))}) {
    const bool cut = first.size() > sizeof(FrameHeader);
    SCOPED_TRACE(cut);
    server.id.reset();
    server.queue_pair = server.MakeQueuePair();
    if (cut) {
      ASSERT_TRUE(testing::PostReceive(*server.queue_pair, 1, {memory.Sge(0, 100)}).ok());
    }
    FileDescriptor fd = Establish();
    Write(fd.get(), first);
    if (!cut) {
      EXPECT_EQ(static_cast<FrameType>(ReadHeader(fd.get()).type), FrameType::kReceiverNotReady);
    }
    for (int i = 0; i < 5; ++i) server.Turn();
    ASSERT_TRUE(server.queue_pair->SetError().ok());
    if (cut) Write(fd.get(), std::string(50, 'x'));
    Write(fd.get(), Bytes(Header(FrameType::kSend, kFirst | kLast, 0, 1)));
    const FrameHeader answer = ReadHeader(fd.get());
    EXPECT_EQ(static_cast<FrameType>(answer.type), FrameType::kNak);
    EXPECT_EQ(static_cast<NakCode>(answer.code), NakCode::kQueuePairInError);
    EXPECT_EQ(answer.sequence, 0u);
    server.completions.clear();
    server.events.clear();
  }
}

TEST_F(SoftWireAnswers, shouldBelieveAPeerThatFailsAfterItWasNotReady) {
  server.queue_pair = server.MakeQueuePair();
  FileDescriptor fd = Establish();
  for (uint64_t i = 0; i < 2; ++i) {
    ASSERT_TRUE(testing::PostSend(*server.queue_pair, testing::Request(Opcode::kSend, i), {}).ok());
  }
  EXPECT_EQ(ReadHeader(fd.get()).sequence, 0u);
  FrameHeader wait = Header(FrameType::kReceiverNotReady, 0, 0);
  wait.immediate = 600'000;  // us: it is not sent again in this test
  FrameHeader failed = Header(FrameType::kNak, 0, 0);
  failed.code = static_cast<uint8_t>(NakCode::kQueuePairInError);
  Write(fd.get(), Bytes(wait) + Bytes(failed));
  ExpectStatuses({CompletionStatus::kRetryExceeded, CompletionStatus::kFlushError});
  EXPECT_TRUE(server.events.empty());
}

// The request has left, then is to wait, and then comes behind answers that find no room in the
// socket: it does not leave again, so nothing but the timer of its first try is there to end it.
// As long as the peer has asked for, it may be silent.
TEST_F(SoftWireAnswers, shouldWaitForAReceiverAsLongAsItAsks) {
  server.queue_pair = server.MakeQueuePair();
  FileDescriptor fd = Establish(/*retry_count=*/0);
  ASSERT_TRUE(testing::PostSend(*server.queue_pair, testing::Request(Opcode::kSend, 1), {}).ok());
  EXPECT_EQ(static_cast<FrameType>(ReadHeader(fd.get()).type), FrameType::kSend);
  FrameHeader answer = Header(FrameType::kReceiverNotReady, 0, 0, 0);
  answer.immediate = 400'000;  // us: four times as long as a peer may be silent
  Write(fd.get(), Bytes(answer));
  EXPECT_EQ(static_cast<FrameType>(ReadHeader(fd.get()).type), FrameType::kSend);
  Write(fd.get(), Answer(FrameType::kAck, 0));
  ExpectStatuses({CompletionStatus::kSuccess});
}

TEST_F(SoftWireAnswers, shouldGiveUpAPeerThatAsksToWaitAndReadsNoMore) {
  server.queue_pair = server.MakeQueuePair();
  FileDescriptor fd = Establish();
  ASSERT_TRUE(testing::PostSend(*server.queue_pair, testing::Request(Opcode::kSend, 1), {}).ok());
  EXPECT_EQ(static_cast<FrameType>(ReadHeader(fd.get()).type), FrameType::kSend);
  ASSERT_NO_FATAL_FAILURE(Clog(fd.get(), Answer(FrameType::kReceiverNotReady, 0)));
  ExpectStatuses({CompletionStatus::kRetryExceeded});
}

// The request has never left, so no try of it has set a timer.
TEST_F(SoftWireAnswers, shouldGiveUpAPeerThatReadsNoMoreBeforeARequestIsPosted) {
  server.queue_pair = server.MakeQueuePair();
  FileDescriptor fd = Establish();
  ASSERT_NO_FATAL_FAILURE(Clog(fd.get()));
  // The server has then answered until its socket was full.
  EXPECT_EQ(static_cast<FrameType>(ReadHeader(fd.get()).type), FrameType::kReadResponse);
  ASSERT_TRUE(testing::PostSend(*server.queue_pair, testing::Request(Opcode::kSend, 1), {}).ok());
  ExpectStatuses({CompletionStatus::kRetryExceeded});
}

TEST_F(SoftWireAnswers, shouldEndWholeFramesBeforeItDisconnects) {
  server.queue_pair = server.MakeQueuePair();
  FileDescriptor fd = Establish();
  ASSERT_NO_FATAL_FAILURE(Narrow(fd.get()));
  ASSERT_TRUE(testing::PostSend(*server.queue_pair, testing::Request(Opcode::kSend, 1),
                                {memory.Sge(0, 256 << 10)})
                  .ok());
  server.Turn();
  ASSERT_TRUE(server.id->Disconnect().ok());
  size_t left = 256 << 10;
  EXPECT_EQ(static_cast<FrameType>(ReadHeader(fd.get()).type), FrameType::kSend);
  EXPECT_TRUE(Turn([&] {
    char bytes[4096];
    const ssize_t count = recv(fd.get(), bytes, std::min(left, sizeof(bytes)), MSG_DONTWAIT);
    if (count > 0) left -= static_cast<size_t>(count);
    return left == 0 || count == 0;
  }));
  EXPECT_EQ(left, 0u);
  EXPECT_EQ(static_cast<FrameType>(ReadHeader(fd.get()).type), FrameType::kDisconnectRequest);
}

TEST_F(SoftWireAnswers, shouldDropAPeerThatTriesAgainBeforeItIsTold) {
  FileDescriptor fd = Establish();
  const std::string message = Bytes(Header(FrameType::kSend, kFirst | kLast, 0));
  Write(fd.get(), message + message);
  EXPECT_TRUE(AwaitClose(fd.get()));
  ExpectService();
}

// Frames with a plausible head and anything in it, from a seed.
TEST_F(SoftWire, shouldSurviveRandomFrames) {
  constexpr FrameType kTypes[] = {FrameType::kSend,
                                  FrameType::kWrite,
                                  FrameType::kRead,
                                  FrameType::kCompareAndSwap,
                                  FrameType::kFetchAndAdd,
                                  FrameType::kAck,
                                  FrameType::kNak,
                                  FrameType::kReceiverNotReady,
                                  FrameType::kReadResponse,
                                  FrameType::kAtomicResponse,
                                  FrameType::kDisconnectReply};
  std::mt19937 random(12345);
  for (int round = 0; round < 300; ++round) {
    server.id.reset();
    server.queue_pair = server.MakeQueuePair();
    for (uint64_t i = 0; i < 8; ++i) {
      ASSERT_TRUE(testing::PostReceive(*server.queue_pair, i, {memory.Sge(i * 512, 512)}).ok());
    }
    FileDescriptor fd = Establish();
    for (uint64_t i = 0; i < 4; ++i) {
      SendRequest request = testing::Request(i % 2 == 0 ? Opcode::kRead : Opcode::kSend, i);
      ASSERT_TRUE(testing::PostSend(*server.queue_pair, request, {memory.Sge(8192, 512)}).ok());
    }
    uint32_t sequence = 0;
    for (int i = 0; i < 20; ++i) {
      const FrameType type = kTypes[random() % std::size(kTypes)];
      std::string body(random() % 3 == 0 ? random() % 1000 : 0, 'b');
      const uint64_t address = memory.address() + random() % (2 << 20);
      const uint32_t rkey = random() % 4 == 0 ? random() : memory.region->rkey();
      if (type == FrameType::kWrite) {
        body.insert(0, Bytes(WriteHead{address, rkey, 0, body.size()}));
      } else if (type == FrameType::kRead) {
        body = Bytes(ReadHead{address, rkey, static_cast<uint32_t>(random() % (1 << 20))});
      } else if (type == FrameType::kCompareAndSwap || type == FrameType::kFetchAndAdd) {
        body = Bytes(AtomicHead{address & ~uint64_t{7}, rkey, 0, 1, 2});
      } else if (type == FrameType::kAtomicResponse) {
        body = std::string(8, 'a');
      }
      FrameHeader header = Header(type, static_cast<uint8_t>(random() % 32), 0);
      if (random() % 4 != 0) header.flags |= kFirst | kLast;
      header.length = static_cast<uint32_t>(body.size());
      header.sequence = random() % 4 == 0 ? random() % 6 : sequence++;
      header.code = static_cast<uint8_t>(random() % 6);
      const std::string frame = Bytes(header) + body;
      if (send(fd.get(), frame.data(), frame.size(), MSG_NOSIGNAL) < 0) break;
      server.Turn();
    }
    for (int i = 0; i < 20; ++i) server.Turn();
    server.events.clear();
    server.completions.clear();
    ASSERT_TRUE(server.poll_status.ok());
  }
  ExpectService();
}

}  // namespace
}  // namespace baton::verbs::soft
