// Connections of the soft device within a machine: their frames go through memory.
#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <optional>
#include <random>
#include <string>

#include "lib/base/file_descriptor.h"
#include "lib/nic/event_loop.h"
#include "lib/nic/memory_wire.h"
#include "lib/nic/rendezvous.h"
#include "lib/nic/wire.h"
#include "lib/verbs/soft/soft_device.h"
#include "tests/lib/verbs/devices.h"
#include "tests/lib/verbs/nic_process.h"
#include "tests/lib/verbs/verbs_harness.h"

namespace baton::verbs::testing {
namespace {

using nic::MemoryWire;
using soft::CreateSoftDevice;
using soft::FrameHeader;
using soft::FrameType;
using soft::SoftDeviceOptions;

// How many ends of such memory this process has mapped.
int Mapped() {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);) {
    count += line.find("memfd:baton-wire") != std::string::npos;
  }
  return count;
}

struct MemoryPair {
  explicit MemoryPair(const SoftDeviceOptions& ours_are = {},
                      const SoftDeviceOptions& theirs_are = {})
      : client(CreateSoftDevice(ours_are).value()), server(CreateSoftDevice(theirs_are).value()) {
    Connect(client, server);
  }
  // Turns both until their connection is in memory.
  bool AwaitMemory() {
    return Pump(client, server, [] { return Mapped() == 2; });
  }
  // One message from `from` to `to`, and its content.
  void Exchange(Side& from, Buffer& source, Side& to, Buffer& target, uint64_t number) {
    const std::string text = "message " + std::to_string(number);
    source.Fill(0, text);
    ASSERT_TRUE(PostReceive(*to.queue_pair, number, {target.Sge(0, 64)}).ok());
    ASSERT_TRUE(
        PostSend(*from.queue_pair, Request(Opcode::kSend, number), {source.Sge(0, text.size())})
            .ok());
    const Completion received = AwaitCompletion(to, from);
    ASSERT_EQ(received.wr_id, number);
    ASSERT_EQ(received.status, CompletionStatus::kSuccess);
    ASSERT_EQ(target.Text(0, received.byte_len), text);
    ASSERT_EQ(AwaitCompletion(from, to).wr_id, number);
  }

  Side client;
  Side server;
  Buffer ours{client.device.get(), 1 << 20, kAllAccess};
  Buffer theirs{server.device.get(), 1 << 20, kAllAccess};
};

TEST(MemoryWireOfDevices, shouldBeTakenOnceAConnectionHasTraffic) {
  SoftDeviceOptions options;
  options.memory_wire_after = 10;
  MemoryPair pair(options, options);
  for (uint64_t i = 1; i < 10; ++i)
    pair.Exchange(pair.client, pair.ours, pair.server, pair.theirs, i);
  EXPECT_EQ(Mapped(), 0);
  for (uint64_t i = 1; i < 20; ++i)
    pair.Exchange(pair.client, pair.ours, pair.server, pair.theirs, i);
  EXPECT_TRUE(pair.AwaitMemory());
  for (uint64_t i = 1; i < 200; ++i) {
    pair.Exchange(pair.server, pair.theirs, pair.client, pair.ours, i);
  }
  pair.client.id.reset();
  CmEvent event;
  EXPECT_TRUE(AwaitEvent(pair.server, pair.client, CmEventType::kDisconnected, &event));
  EXPECT_EQ(Mapped(), 0);
}

// Messages of both directions are under way in each turn of the change.
TEST(MemoryWireOfDevices, shouldLoseNothingWhileAConnectionMovesThere) {
  constexpr uint64_t kMessages = 600;
  constexpr size_t kBytes = 9000;
  for (uint32_t after = 1; after <= 6; ++after) {
    SoftDeviceOptions options;
    options.memory_wire_after = after;
    MemoryPair pair(options, options);
    Side* const sides[] = {&pair.client, &pair.server};
    Buffer* const buffers[] = {&pair.ours, &pair.theirs};
    uint64_t posted[2] = {}, sent[2] = {}, received[2] = {};
    // Receives lie in the second half, sends in the first: slot n % 32 has what n says.
    const auto slot = [](uint64_t number) { return number % 32 * 16'000; };
    for (int i = 0; i < 2; ++i) {
      for (uint64_t n = 0; n < 32; ++n) {
        ASSERT_TRUE(PostReceive(*sides[i]->queue_pair, n << 1 | 1,
                                {buffers[i]->Sge((512 << 10) + slot(n), 16'000)})
                        .ok());
      }
    }
    const auto step = [&](int i) {
      while (posted[i] < kMessages && posted[i] - sent[i] < 20) {
        const uint64_t n = posted[i]++;
        std::memset(buffers[i]->data() + slot(n), static_cast<int>(n % 251), kBytes);
        ASSERT_TRUE(PostSend(*sides[i]->queue_pair, Request(Opcode::kSend, n << 1),
                             {buffers[i]->Sge(slot(n), kBytes)})
                        .ok());
      }
      for (; !sides[i]->completions.empty(); sides[i]->completions.pop_front()) {
        const Completion& completion = sides[i]->completions.front();
        ASSERT_EQ(completion.status, CompletionStatus::kSuccess);
        if ((completion.wr_id & 1) == 0) {
          ASSERT_EQ(completion.wr_id >> 1, sent[i]++);
          continue;
        }
        const uint64_t n = received[i]++;
        ASSERT_EQ(completion.wr_id >> 1, n);
        const uint8_t* const at = buffers[i]->data() + (512 << 10) + slot(n);
        ASSERT_EQ(at[0], n % 251);
        ASSERT_EQ(std::memcmp(at, at + 1, kBytes - 1), 0);
        ASSERT_TRUE(PostReceive(*sides[i]->queue_pair, (n + 32) << 1 | 1,
                                {buffers[i]->Sge((512 << 10) + slot(n), 16'000)})
                        .ok());
      }
    };
    ASSERT_TRUE(Pump(pair.client, pair.server, [&] {
      step(0);
      step(1);
      return HasFatalFailure() || (sent[0] + sent[1] + received[0] + received[1] == 4 * kMessages);
    }));
    EXPECT_EQ(Mapped(), 2);
  }
}

TEST(MemoryWireOfDevices, shouldStayOnTcpIfEitherSideSaysSo) {
  const SoftDeviceOptions sides[][2] = {
      {OnTcp(), InMemory()}, {InMemory(), OnTcp()}, {OnTcp(), OnTcp()}};
  for (const auto& options : sides) {
    MemoryPair pair(options[0], options[1]);
    for (uint64_t i = 0; i < 100; ++i) {
      pair.Exchange(pair.client, pair.ours, pair.server, pair.theirs, i);
    }
    EXPECT_EQ(Mapped(), 0);
  }
}

TEST(MemoryWireOfDevices, shouldTakeNoMoreMemoryThanItMay) {
  SoftDeviceOptions options = InMemory();
  options.max_memory_wires = 1;
  MemoryPair pair(options, options);
  ASSERT_TRUE(pair.AwaitMemory());
  std::unique_ptr<QueuePair> first = std::move(pair.server.queue_pair);
  std::unique_ptr<ConnectionId> first_id = std::move(pair.server.id);
  Side second(CreateSoftDevice(InMemory()).value());
  pair.server.queue_pair = pair.server.MakeQueuePair();
  Connect(second, pair.server);
  for (int i = 0; i < 1000; ++i) {
    second.Turn();
    pair.server.Turn();
  }
  EXPECT_EQ(Mapped(), 2);
  // The first one's end makes room.
  first_id.reset();
  first.reset();
  ASSERT_TRUE(Pump(pair.client, pair.server, [] { return Mapped() == 0; }));
  pair.server.id.reset();
  pair.server.queue_pair = pair.server.MakeQueuePair();
  pair.server.events.clear();
  Side third(CreateSoftDevice(InMemory()).value());
  Connect(third, pair.server);
  EXPECT_TRUE(Pump(third, pair.server, [] { return Mapped() == 2; }));
}

// What the peer had written before it was killed is executed, and then its end is reported.
TEST(MemoryWireOfDevices, shouldExecuteWhatAPeerWroteBeforeItWasKilled) {
  int pipes[2][2];
  ASSERT_EQ(pipe(pipes[0]), 0);
  ASSERT_EQ(pipe(pipes[1]), 0);
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    Side sender(CreateSoftDevice(InMemory()).value());
    Buffer buffer(sender.device.get(), 4096, kAllAccess);
    buffer.Fill(0, "what it wrote");
    uint16_t port = 0;
    if (read(pipes[0][0], &port, sizeof(port)) != sizeof(port)) _exit(1);
    sender.id = sender.device->Connect({"127.0.0.1", port}, sender.queue_pair.get(), {}).value();
    while (Mapped() == 0) sender.Turn();
    char go;
    pollfd started = {pipes[0][0], POLLIN, 0};
    while (poll(&started, 1, 0) == 0) sender.Turn();
    if (read(pipes[0][0], &go, 1) != 1) _exit(2);
    for (uint64_t i = 0; i < 5; ++i) {
      PostSend(*sender.queue_pair, Request(Opcode::kSend, i), {buffer.Sge(0, 13)}).IgnoreError();
    }
    for (int i = 0; i < 3; ++i) sender.Turn();
    if (write(pipes[1][1], "x", 1) != 1) _exit(3);
    for (;;) pause();
  }
  Side server(CreateSoftDevice(InMemory()).value());
  Side other(CreateSoftDevice({}).value());
  Buffer buffer(server.device.get(), 4096, kAllAccess);
  const auto listener = server.device->Listen({"127.0.0.1", 0}, 8).value();
  const uint16_t port = listener->address().port;
  ASSERT_EQ(write(pipes[0][1], &port, sizeof(port)), static_cast<ssize_t>(sizeof(port)));
  CmEvent event;
  ASSERT_TRUE(AwaitEvent(server, other, CmEventType::kConnectRequest, &event));
  server.id = std::move(event.new_id);
  ASSERT_TRUE(server.id->Accept(server.queue_pair.get(), {}).ok());
  for (uint64_t i = 0; i < 8; ++i) {
    ASSERT_TRUE(PostReceive(*server.queue_pair, i, {buffer.Sge(i * 64, 64)}).ok());
  }
  ASSERT_TRUE(AwaitEvent(server, other, CmEventType::kEstablished, &event));
  ASSERT_TRUE(Pump(server, other, [] { return Mapped() == 1; }));
  // Both directions have changed once the peer's last frame on TCP is there.
  for (int i = 0; i < 1000; ++i) server.Turn();
  ASSERT_EQ(write(pipes[0][1], "g", 1), 1);
  char done;
  ASSERT_EQ(read(pipes[1][0], &done, 1), 1);  // nobody turns the server meanwhile
  ASSERT_EQ(kill(child, SIGKILL), 0);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  ASSERT_TRUE(AwaitEvent(server, other, CmEventType::kDisconnected, &event));
  ASSERT_GE(server.completions.size(), 8u);
  for (uint64_t i = 0; i < 8; ++i) {
    EXPECT_EQ(server.completions[i].wr_id, i);
    EXPECT_EQ(server.completions[i].status,
              i < 5 ? CompletionStatus::kSuccess : CompletionStatus::kFlushError);
  }
  EXPECT_EQ(buffer.Text(4 * 64, 13), "what it wrote");
  EXPECT_EQ(Mapped(), 0);
  for (auto& ends : pipes) {
    for (const int end : ends) close(end);
  }
}

// A NIC is killed in the middle of traffic, again and again. Its peer sees each message at most
// once and in order, and then the end.
TEST(MemoryWireOfDevices, shouldSurviveAPeerThatIsKilledAtAnyTime) {
  std::mt19937 random(7);
  for (int round = 0; round < 15; ++round) {
    pid_t nic = -1;
    Side client(OpenWithNic(&nic, InMemory()).value());
    Side server(CreateSoftDevice(InMemory()).value());
    Buffer ours(client.device.get(), 1 << 20, kAllAccess);
    Buffer theirs(server.device.get(), 1 << 20, kAllAccess);
    Connect(client, server);
    uint64_t next = 0, posted = 0, completed = 0, receives = 0;
    const uint64_t last = random() % 400;
    bool killed = false;
    CmEvent event;
    const auto step = [&] {
      for (; receives - next < 32; ++receives) {
        if (server.queue_pair->state() != QueuePairState::kReadyToSend) break;
        ASSERT_TRUE(
            PostReceive(*server.queue_pair, receives, {theirs.Sge(receives % 64 * 8192, 8192)})
                .ok());
      }
      // The peer may have a message long before its sender's queue has room again.
      for (; !killed && posted < completed + 8; ++posted) {
        ours.Word(posted % 64 * 8192) = posted;
        ASSERT_TRUE(PostSend(*client.queue_pair, Request(Opcode::kSend, posted),
                             {ours.Sge(posted % 64 * 8192, 8 + random() % 8000)})
                        .ok());
      }
      for (; !server.completions.empty(); server.completions.pop_front()) {
        const Completion& completion = server.completions.front();
        if (completion.status == CompletionStatus::kFlushError) continue;
        ASSERT_EQ(completion.status, CompletionStatus::kSuccess);
        ASSERT_EQ(completion.wr_id, next);
        ASSERT_EQ(theirs.Word(next % 64 * 8192), next);
        ++next;
      }
      completed += client.completions.size();
      client.completions.clear();
      if (!killed && next >= last) {
        killed = true;
        ASSERT_EQ(kill(nic, SIGKILL), 0);
      }
    };
    ASSERT_TRUE(Pump(client, server, [&] {
      step();
      return HasFatalFailure() || (killed && !server.events.empty());
    }));
    ASSERT_EQ(waitpid(nic, nullptr, 0), nic);
    ASSERT_EQ(server.events.front().type, CmEventType::kDisconnected);
    EXPECT_EQ(Mapped(), 0);
  }
}

// ---------------------------------------------------------------- peers that lie

// Takes the memory that a device offers, and does with it what no NIC does.
class MemoryLiar : public ::testing::Test, private nic::MemoryRequest::User {
 protected:
  struct Head {
    FrameHeader header;
    soft::ConnectHead body;
  };

  void SetUp() override {
    listener_.Reset(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    ASSERT_EQ(bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
    ASSERT_EQ(listen(listener_.get(), 1), 0);
    getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &size);
    victim.id =
        victim.device->Connect({"127.0.0.1", ntohs(address.sin_port)}, victim.queue_pair.get(), {})
            .value();
    peer_.Reset(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    Read<Head>();
    Head reply = {};
    reply.header = {soft::kWireVersion,
                    static_cast<uint8_t>(FrameType::kConnectReply),
                    0,
                    0,
                    sizeof(reply.body),
                    0,
                    0};
    reply.body.magic = soft::kWireMagic;
    reply.body.responder_resources = reply.body.initiator_depth = 4;
    reply.body.retry_count = reply.body.rnr_retry_count = 7;
    reply.body.features = soft::kTakesMemoryOffers;
    Write(reply);
    EXPECT_EQ(Read<FrameHeader>().type, static_cast<uint8_t>(FrameType::kReadyToUse));
    CmEvent event;
    ASSERT_TRUE(AwaitEvent(victim, other, CmEventType::kEstablished, &event));
  }

  // Turns the victim until it has sent a T.
  template <typename T>
  T Read() {
    T value = {};
    EXPECT_TRUE(Pump(victim, other, [&] {
      return recv(peer_.get(), &value, sizeof(value), MSG_DONTWAIT | MSG_PEEK) == sizeof(value);
    }));
    EXPECT_EQ(recv(peer_.get(), &value, sizeof(value), 0), static_cast<ssize_t>(sizeof(value)));
    return value;
  }
  template <typename T>
  void Write(const T& value) {
    EXPECT_EQ(send(peer_.get(), &value, sizeof(value), MSG_NOSIGNAL),
              static_cast<ssize_t>(sizeof(value)));
  }
  void Say(FrameType type) {
    Write(FrameHeader{soft::kWireVersion, static_cast<uint8_t>(type), 0, 0, 0, 0, 0});
  }

  void TakeOffer() {
    struct Offer {
      FrameHeader header;
      soft::MemoryOffer body;
    };
    const auto offer = Read<Offer>();
    ASSERT_EQ(offer.header.type, static_cast<uint8_t>(FrameType::kMemoryOffer));
    const auto request = nic::MemoryRequest::Make(loop_.get(), offer.body, this).value();
    ASSERT_TRUE(Pump(victim, other, [&] {
      loop_->Progress();
      return memfd_.has_value();
    }));
    ASSERT_TRUE(memfd_->ok());
    wire = MemoryWire::Map((*memfd_)->get()).value();
  }
  void Move() {
    TakeOffer();
    Say(FrameType::kMemoryReady);
    EXPECT_EQ(Read<FrameHeader>().type, static_cast<uint8_t>(FrameType::kMemoryReady));
  }
  void WriteToMemory(std::string bytes) {
    const iovec iovecs[] = {{bytes.data(), bytes.size()}};
    ASSERT_EQ(wire->out().Write(iovecs, 1), static_cast<ssize_t>(bytes.size()));
    if (wire->out().ReaderSleeps()) Write(soft::kWakeByte);
  }
  // The victim's side of the memory, to be spoilt.
  nic::MemoryWireLayout* Layout() {
    void* const at = mmap(nullptr, sizeof(nic::MemoryWireLayout), PROT_READ | PROT_WRITE,
                          MAP_SHARED, (*memfd_)->get(), 0);
    return static_cast<nic::MemoryWireLayout*>(at);
  }
  void ExpectEnd() {
    CmEvent event;
    EXPECT_TRUE(AwaitEvent(victim, other, CmEventType::kDisconnected, &event));
    EXPECT_EQ(victim.queue_pair->state(), QueuePairState::kError);
    EXPECT_EQ(Mapped(), wire == nullptr ? 0 : 1);
    // Others are served.
    victim.queue_pair = victim.MakeQueuePair();
    Connect(victim, other);
  }

  Side victim{CreateSoftDevice(InMemory()).value()};
  Side other{CreateSoftDevice({}).value()};
  std::unique_ptr<MemoryWire> wire;

 private:
  void OnMemory(absl::StatusOr<FileDescriptor> memfd) override { memfd_.emplace(std::move(memfd)); }

  std::unique_ptr<soft::EventLoop> loop_ = soft::EventLoop::Create().value();
  FileDescriptor listener_;
  FileDescriptor peer_;
  std::optional<absl::StatusOr<FileDescriptor>> memfd_;
};

TEST_F(MemoryLiar, shouldBeServedWhileItKeepsToTheProtocol) {
  Move();
  Buffer buffer(victim.device.get(), 4096, kAllAccess);
  ASSERT_TRUE(PostReceive(*victim.queue_pair, 1, {buffer.Sge(0, 64)}).ok());
  const FrameHeader header = {soft::kWireVersion,
                              static_cast<uint8_t>(FrameType::kSend),
                              soft::kFirst | soft::kLast,
                              0,
                              5,
                              0,
                              0};
  WriteToMemory(std::string(reinterpret_cast<const char*>(&header), sizeof(header)) + "hello");
  EXPECT_EQ(AwaitCompletion(victim, other).status, CompletionStatus::kSuccess);
  EXPECT_EQ(buffer.Text(0, 5), "hello");
  // The answer comes through the memory. A victim that slept was woken by a byte.
  FrameHeader answer = {};
  const iovec iovecs[] = {{&answer, sizeof(answer)}};
  ASSERT_TRUE(Pump(victim, other, [&] { return wire->in().Read(iovecs, 1) == sizeof(answer); }));
  EXPECT_EQ(answer.type, static_cast<uint8_t>(FrameType::kAck));
}

// One that sleeps is woken by its descriptor.
TEST_F(MemoryLiar, shouldWakeADeviceThatSleeps) {
  Move();
  pollfd readable = {victim.device->event_fd(), POLLIN, 0};
  ASSERT_TRUE(Pump(victim, other, [&] { return poll(&readable, 1, 0) == 0; }));
  const FrameHeader header = {
      soft::kWireVersion, static_cast<uint8_t>(FrameType::kDisconnectRequest), 0, 0, 0, 0, 0};
  WriteToMemory(std::string(reinterpret_cast<const char*>(&header), sizeof(header)));
  EXPECT_EQ(poll(&readable, 1, 10'000), 1);
  CmEvent event;
  EXPECT_TRUE(AwaitEvent(victim, other, CmEventType::kDisconnected, &event));
}

TEST_F(MemoryLiar, shouldBeDroppedForFramesThatAreNone) {
  Move();
  WriteToMemory(std::string(100, 'x'));
  ExpectEnd();
}

TEST_F(MemoryLiar, shouldBeDroppedForAnImpossibleTail) {
  Move();
  nic::MemoryWireLayout* const layout = Layout();
  layout->from_peer.tail = nic::kRingBytes + 1;
  munmap(layout, sizeof(*layout));
  Write(soft::kWakeByte);
  ExpectEnd();
}

TEST_F(MemoryLiar, shouldBeDroppedForAnImpossibleHead) {
  Move();
  nic::MemoryWireLayout* const layout = Layout();
  layout->to_peer.head = ~uint64_t{0};
  munmap(layout, sizeof(*layout));
  // The victim looks at the head when its ring seems to be full.
  Buffer buffer(victim.device.get(), 2 * nic::kRingBytes, kAllAccess);
  ASSERT_TRUE(
      PostSend(*victim.queue_pair, Request(Opcode::kSend, 1), {buffer.Sge(0, 2 * nic::kRingBytes)})
          .ok());
  ExpectEnd();
  munmap(layout, sizeof(*layout));
}

TEST_F(MemoryLiar, shouldBeDroppedForWhatIsNoWakeUp) {
  Move();
  Write(uint8_t{soft::kWakeByte + 1});
  ExpectEnd();
}

TEST_F(MemoryLiar, shouldBeDroppedForChangingTwice) {
  Move();
  Say(FrameType::kMemoryReady);
  ExpectEnd();
}

TEST_F(MemoryLiar, shouldBeDroppedForMemoryThatItDidNotTake) {
  Say(FrameType::kMemoryReady);
  ExpectEnd();
}

TEST_F(MemoryLiar, shouldStayOnTcpIfItRefuses) {
  Say(FrameType::kMemoryRefused);
  Buffer buffer(victim.device.get(), 4096, kAllAccess);
  ASSERT_TRUE(PostReceive(*victim.queue_pair, 1, {buffer.Sge(0, 64)}).ok());
  Write(FrameHeader{soft::kWireVersion, static_cast<uint8_t>(FrameType::kSend),
                    soft::kFirst | soft::kLast, 0, 0, 0, 0});
  EXPECT_EQ(AwaitCompletion(victim, other).status, CompletionStatus::kSuccess);
  EXPECT_EQ(Mapped(), 0);
}

TEST_F(MemoryLiar, shouldLeaveNothingBehindItsEnd) {
  TakeOffer();
  wire.reset();
  EXPECT_EQ(Mapped(), 1);
  victim.id.reset();
  EXPECT_EQ(Mapped(), 0);
}

}  // namespace
}  // namespace baton::verbs::testing
