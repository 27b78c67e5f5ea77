// A soft device whose NIC is a process: what it needs of its users, and what they see when that
// process is gone.
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

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

}  // namespace
}  // namespace baton::verbs::testing
