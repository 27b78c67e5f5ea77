// A peer process that is killed: its connections end, and its port is free at once.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/verbs/soft/soft_device.h"
#include "tests/lib/verbs/verbs_harness.h"

namespace baton::verbs::testing {
namespace {

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
