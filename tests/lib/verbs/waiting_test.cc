// The event descriptor: a driver that sleeps on it misses nothing and does not spin.
#include <poll.h>

#include "lib/base/clock.h"
#include "tests/lib/verbs/connected_test.h"

namespace baton::verbs::testing {
namespace {

bool Readable(const Side& side) {
  pollfd fd = {side.device->event_fd(), POLLIN, 0};
  return poll(&fd, 1, 0) == 1;
}

class Waiting : public ConnectedTest {
 protected:
  void SetUp() override {
    Join();
    ASSERT_TRUE(Pump(client, server, [&] { return Quiet(); }));
  }
  bool Quiet() { return !Readable(client) && !Readable(server); }
  // The server has something to do; it goes on having it through any number of turns.
  void AwaitServerReadable() {
    const uint64_t deadline = MonotonicNanoseconds() + 5'000'000'000;
    while (!Readable(server) && MonotonicNanoseconds() < deadline) client.device->Progress();
    for (int i = 0; i < 1000; ++i) {
      client.device->Progress();
      server.device->Progress();
    }
  }
};

TEST_P(Waiting, shouldBeQuietWhenThereIsNothingToDo) {
  for (int i = 0; i < 10; ++i) {
    client.Turn();
    EXPECT_TRUE(Quiet());
  }
}

TEST_P(Waiting, shouldWakeForACompletionOnceNotificationWasRequested) {
  ASSERT_TRUE(PostReceive(*server.queue_pair, 1, {theirs.Sge(0, 8)}).ok());
  ASSERT_TRUE(server.queue->RequestNotification().ok());
  ASSERT_TRUE(PostSend(*client.queue_pair, Request(Opcode::kSend, 2), {ours.Sge(0, 8)}).ok());
  const uint64_t deadline = MonotonicNanoseconds() + 5'000'000'000;
  Completion taken;
  bool got = false;
  while (!got && MonotonicNanoseconds() < deadline) {
    client.device->Progress();
    pollfd fd = {server.device->event_fd(), POLLIN, 0};
    poll(&fd, 1, 1);
    server.device->Progress();
    got = server.queue->Poll(absl::MakeSpan(&taken, 1)).value() == 1;
    // Level-triggered: still readable while a completion waits.
    if (!got) continue;
    EXPECT_EQ(taken.wr_id, 1u);
  }
  EXPECT_TRUE(got);
  EXPECT_TRUE(Pump(client, server, [&] { return Quiet(); }));
}

TEST_P(Waiting, shouldStayReadableUntilTheNotifiedQueueIsPolled) {
  ASSERT_TRUE(PostReceive(*server.queue_pair, 1, {theirs.Sge(0, 8)}).ok());
  ASSERT_TRUE(server.queue->RequestNotification().ok());
  ASSERT_TRUE(PostSend(*client.queue_pair, Request(Opcode::kSend, 2), {ours.Sge(0, 8)}).ok());
  AwaitServerReadable();
  EXPECT_TRUE(Readable(server));
  server.Turn();
  EXPECT_EQ(server.completions.size(), 1u);
  EXPECT_TRUE(Pump(client, server, [&] { return Quiet(); }));
}

TEST_P(Waiting, shouldStayReadableUntilAnEventIsTaken) {
  ASSERT_TRUE(client.id->Disconnect().ok());
  AwaitServerReadable();
  EXPECT_TRUE(Readable(server));
  server.Turn();
  EXPECT_EQ(server.events.size(), 1u);
  client.Turn();
  EXPECT_TRUE(Pump(client, server, [&] { return Quiet(); }));
}

TEST_P(Waiting, shouldNotNeedNotificationsToAcknowledge) {
  ASSERT_TRUE(PostReceive(*server.queue_pair, 1, {theirs.Sge(0, 8)}).ok());
  ASSERT_TRUE(PostSend(*client.queue_pair, Request(Opcode::kSend, 2), {ours.Sge(0, 8)}).ok());
  const uint64_t deadline = MonotonicNanoseconds() + 5'000'000'000;
  while (client.completions.empty() && MonotonicNanoseconds() < deadline) {
    client.Turn();
    if (Readable(server)) server.device->Progress();  // only when it asks for it
  }
  EXPECT_EQ(client.completions.size(), 1u);
}

INSTANTIATE_TEST_SUITE_P(Devices, Waiting, ::testing::ValuesIn(AllDevices()), DeviceName);

}  // namespace
}  // namespace baton::verbs::testing
