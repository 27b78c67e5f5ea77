// Peers that do not keep to the protocol: they are dropped, and nobody else notices.
#include "lib/verbs/soft/wire.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <random>

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

std::string ConnectRequest() {
  ConnectHead head = {};
  head.magic = kWireMagic;
  head.responder_resources = head.initiator_depth = 4;
  head.retry_count = head.rnr_retry_count = 7;
  return Bytes(Header(FrameType::kConnectRequest, 0, sizeof(head))) + Bytes(head);
}

std::string ReadyToUse() { return Bytes(Header(FrameType::kReadyToUse, 0, 0)); }

class SoftWire : public ::testing::Test {
 protected:
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

  // Turns the server until it closes `fd`.
  bool AwaitClose(int fd) {
    return Turn([fd] {
      char sink[4096];
      ssize_t count;
      do {
        count = recv(fd, sink, sizeof(sink), MSG_DONTWAIT);
      } while (count > 0);
      return count == 0 || (errno != EAGAIN && errno != EINTR);
    });
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

  // A raw peer with an established connection; the server side's id is server.id.
  FileDescriptor Establish() {
    FileDescriptor fd = Dial();
    Write(fd.get(), ConnectRequest());
    EXPECT_TRUE(Turn([&] { return !server.events.empty(); }));
    server.id = std::move(server.events.front().new_id);
    server.events.clear();
    EXPECT_TRUE(server.id->Accept(server.queue_pair.get(), {}).ok());
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
    return options;
  }

  Side server{CreateSoftDevice(Options()).value()};
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
        body = Bytes(WriteHead{address, rkey, 0, body.size()}) + body;
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
