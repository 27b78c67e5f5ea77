// These tests show what a soft device whose NIC is a process needs of its users, and what is left
// of that process or of a peer when it is killed.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "lib/base/file_descriptor.h"
#include "lib/verbs/soft/soft_device.h"
#include "tests/lib/verbs/nic_process.h"
#include "tests/lib/verbs/verbs_harness.h"

namespace baton::verbs::testing {
namespace {

class NicProcessTest : public ::testing::Test {
 protected:
  void KillNic() {
    ASSERT_EQ(kill(nic_, SIGKILL), 0);
    ASSERT_EQ(waitpid(nic_, nullptr, 0), nic_);
  }

  pid_t nic_ = -1;
  Side client{OpenWithNic(&nic_).value()};
  Side server{OpenWithNicProcess().value()};
};

TEST_F(NicProcessTest, shouldBeLostWithItsNic) {
  Connect(client, server);
  KillNic();
  ASSERT_TRUE(Pump(client, server, [&] { return !client.device_events.empty(); }));
  ASSERT_EQ(client.device_events.size(), 1u);
  EXPECT_EQ(client.device_events[0].type, DeviceEventType::kDeviceLost);
  EXPECT_EQ(client.queue_pair->state(), QueuePairState::kError);
  EXPECT_EQ(client.device->CreateCompletionQueue(1).status().code(),
            absl::StatusCode::kUnavailable);
  // The peer sees the end of the connection, as that of a machine whose NIC was removed.
  CmEvent event;
  ASSERT_TRUE(AwaitEvent(server, client, CmEventType::kDisconnected, &event));
}

// A loop that polls its event_fd would spin else.
TEST_F(NicProcessTest, shouldNotWakeForEverForALossThatWasTold) {
  Connect(client, server);
  ASSERT_TRUE(client.queue->RequestNotification().ok());
  KillNic();
  ASSERT_TRUE(Pump(client, server, [&] { return !client.device_events.empty(); }));
  ASSERT_TRUE(client.queue->RequestNotification().ok());
  client.Turn();
  pollfd readable = {client.device->event_fd(), POLLIN, 0};
  EXPECT_EQ(poll(&readable, 1, 0), 0);
}

TEST_F(NicProcessTest, shouldMakeAsManyObjectsAsItSays) {
  const uint32_t most = client.device->limits().max_memory_regions;
  const Buffer buffer(client.device.get(), 4096, kLocalWrite);
  std::vector<std::unique_ptr<MemoryRegion>> regions;
  absl::Status refused;
  while (refused.ok() && regions.size() <= most) {
    auto region = client.device->RegisterMemory(buffer.data(), 4096, kLocalWrite);
    refused = region.status();
    if (region.ok()) regions.push_back(*std::move(region));
  }
  EXPECT_EQ(regions.size(), most - 1);  // the buffer has another
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted) << refused;
}

TEST_F(NicProcessTest, shouldRegisterOnlyMemoryThatWasNamed) {
  void* const memory =
      mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  EXPECT_EQ(client.device->RegisterMemory(memory, 4096, kLocalWrite).status().code(),
            absl::StatusCode::kInvalidArgument);
  munmap(memory, 4096);
  const Buffer buffer(client.device.get(), 8192, kLocalWrite);
  EXPECT_TRUE(client.device->RegisterMemory(buffer.data() + 4096, 4096, kLocalWrite).ok());
  EXPECT_EQ(client.device->RegisterMemory(buffer.data() + 4096, 4097, kLocalWrite).status().code(),
            absl::StatusCode::kInvalidArgument);
  // An unsealed file could be made shorter under the NIC.
  EXPECT_EQ(
      client.device->NameMemory(buffer.data(), 8192, memfd_create("open", MFD_CLOEXEC)).code(),
      absl::StatusCode::kInvalidArgument);
}

TEST_F(NicProcessTest, shouldForgetMemoryAndKeepWhatElseIsNamedOfItsFile) {
  constexpr size_t kBytes = 8192;
  const FileDescriptor file(memfd_create("twice", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(file.get(), kBytes), 0);
  ASSERT_EQ(fcntl(file.get(), F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK), 0);
  void* mapped[2];
  for (void*& one : mapped) {
    one = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
    ASSERT_NE(one, MAP_FAILED);
    ASSERT_TRUE(client.device->NameMemory(one, kBytes, file.get()).ok());
  }
  const auto registers = [&](void* at) {
    return client.device->RegisterMemory(at, kBytes, kLocalWrite).ok();
  };
  EXPECT_TRUE(registers(mapped[0]) && registers(mapped[1]));
  client.device->ForgetMemory(mapped[0]);
  EXPECT_FALSE(registers(mapped[0]));
  EXPECT_TRUE(registers(mapped[1]));
  client.device->ForgetMemory(mapped[1]);
  client.device->ForgetMemory(mapped[1]);
  EXPECT_FALSE(registers(mapped[1]));
  ASSERT_TRUE(client.device->NameMemory(mapped[0], kBytes, file.get()).ok());
  EXPECT_TRUE(registers(mapped[0]));
  for (void* one : mapped) munmap(one, kBytes);
}

// In the child: accepts one connection and goes on until it is killed.
[[noreturn]] void Serve(int port_fd) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  Side server(soft::CreateSoftDevice({}).value());
  const auto listener = server.device->Listen({"127.0.0.1", 0}, 8).value();
  const uint16_t port = listener->address().port;
  if (write(port_fd, &port, sizeof(port)) != sizeof(port)) _exit(1);
  for (;;) {
    server.Turn();
    for (; !server.events.empty(); server.events.pop_front()) {
      if (server.events.front().type != CmEventType::kConnectRequest) continue;
      server.id = std::move(server.events.front().new_id);
      server.id->Accept(server.queue_pair.get(), {}).IgnoreError();
    }
  }
}

TEST(ProcessDeath, shouldEndConnectionsAndFreeThePortAtOnce) {
  int port_pipe[2];
  ASSERT_EQ(pipe(port_pipe), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) Serve(port_pipe[1]);
  uint16_t port = 0;
  ASSERT_EQ(read(port_pipe[0], &port, sizeof(port)), static_cast<ssize_t>(sizeof(port)));

  Side client(soft::CreateSoftDevice({}).value());
  Side other(soft::CreateSoftDevice({}).value());
  client.id = client.device->Connect({"127.0.0.1", port}, client.queue_pair.get(), {}).value();
  CmEvent event;
  ASSERT_TRUE(AwaitEvent(client, other, CmEventType::kEstablished, &event));
  EXPECT_EQ(other.device->Listen({"127.0.0.1", port}, 8).status().code(),
            absl::StatusCode::kAlreadyExists);

  ASSERT_EQ(kill(child, SIGKILL), 0);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_TRUE(other.device->Listen({"127.0.0.1", port}, 8).ok());
  ASSERT_TRUE(AwaitEvent(client, other, CmEventType::kDisconnected, &event));
  EXPECT_EQ(client.queue_pair->state(), QueuePairState::kError);
  close(port_pipe[0]);
  close(port_pipe[1]);
}

}  // namespace
}  // namespace baton::verbs::testing
