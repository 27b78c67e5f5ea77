// A process that was forked from the opener of a soft device follows it when it is dead. In these
// tests the child is the opener that dies, and the test goes on in its place.
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "gtest/gtest.h"
#include "lib/verbs/soft/soft_device.h"
#include "tests/lib/verbs/nic_process.h"
#include "tests/lib/verbs/verbs_harness.h"

namespace baton::verbs::testing {
namespace {

class SoftTakeOver : public ::testing::Test {
 protected:
  // Has the opener do `work`, which returns a number, and die of SIGKILL. Then this process takes
  // over. Returns the number.
  uint32_t Follow(const std::function<uint32_t()>& work) {
    int told[2];
    EXPECT_EQ(pipe(told), 0);
    const pid_t opener = fork();
    if (opener == 0) {
      const uint32_t number = work();
      if (write(told[1], &number, sizeof(number)) != sizeof(number)) _exit(1);
      raise(SIGKILL);
    }
    close(told[1]);
    uint32_t number = 0;
    EXPECT_EQ(read(told[0], &number, sizeof(number)), static_cast<ssize_t>(sizeof(number)));
    close(told[0]);
    EXPECT_EQ(waitpid(opener, nullptr, 0), opener);
    EXPECT_TRUE(server.device->TakeOver().ok());
    return number;
  }
  void Ask() {
    client.id =
        client.device->Connect({"127.0.0.1", listener->address().port}, client.queue_pair.get(), {})
            .value();
  }
  // For the opener, whose peer does not turn meanwhile.
  CmEvent AwaitAlone(CmEventType type) {
    for (;;) {
      server.Turn();
      if (server.events.empty()) continue;
      CmEvent event = std::move(server.events.front());
      server.events.pop_front();
      if (event.type == type) return event;
    }
  }
  // For the opener: takes one event, and does not say that it is handled.
  CmEvent TakeOne() {
    CmEvent event;
    do server.device->Progress();
    while (!server.device->NextEvent(&event));
    return event;
  }
  void ExpectData() {
    const Buffer from(client.device.get(), 4096, kLocalWrite);
    Buffer to(server.device.get(), 4096, kLocalWrite);
    ASSERT_TRUE(PostReceive(*server.queue_pair, 1, {to.Sge(0, 8)}).ok());
    ASSERT_TRUE(PostSend(*client.queue_pair, Request(Opcode::kSend, 2), {from.Sge(0, 8)}).ok());
    EXPECT_EQ(AwaitCompletion(server, client).status, CompletionStatus::kSuccess);
  }

  Side client{soft::CreateSoftDevice({}).value()};
  Side server{OpenWithNicProcess().value()};
  std::unique_ptr<Listener> listener = server.device->Listen({"127.0.0.1", 0}, 8).value();
};

TEST_F(SoftTakeOver, shouldGetTheEventAgainThatTheOpenerHadNotHandled) {
  Ask();
  // The client's turns send the request, which then waits at the NIC.
  for (int i = 0; i < 1000; ++i) client.Turn();
  Follow([&] { return TakeOne().new_id.release()->number(); });
  CmEvent event;
  ASSERT_TRUE(AwaitEvent(server, client, CmEventType::kConnectRequest, &event));
  server.id = std::move(event.new_id);
  ASSERT_TRUE(server.device->DestroyUnknownIds().ok());
  ASSERT_TRUE(server.id->Accept(server.queue_pair.get(), {}).ok());
  ASSERT_TRUE(AwaitEvent(client, server, CmEventType::kEstablished, &event));
  ASSERT_TRUE(AwaitEvent(server, client, CmEventType::kEstablished, &event));
  ExpectData();
}

TEST_F(SoftTakeOver, shouldAnswerARequestThatTheOpenerHadHandled) {
  Ask();
  for (int i = 0; i < 1000; ++i) client.Turn();
  const uint32_t number = Follow([&] {
    CmEvent event = AwaitAlone(CmEventType::kConnectRequest);
    CmEvent none;
    EXPECT_FALSE(server.device->NextEvent(&none));
    return event.new_id.release()->number();
  });
  auto adopted = server.device->AdoptId(number, nullptr, {});
  ASSERT_TRUE(adopted.ok()) << adopted.status();
  EXPECT_TRUE(adopted->unaccepted);
  server.id = std::move(adopted->id);
  ASSERT_TRUE(server.device->DestroyUnknownIds().ok());
  ASSERT_TRUE(server.id->Accept(server.queue_pair.get(), {}).ok());
  CmEvent event;
  ASSERT_TRUE(AwaitEvent(client, server, CmEventType::kEstablished, &event));
  ExpectData();
}

TEST_F(SoftTakeOver, shouldGoOnWithAConnectionThatTheOpenerHadAccepted) {
  Ask();
  for (int i = 0; i < 1000; ++i) client.Turn();
  const uint32_t number = Follow([&] {
    CmEvent event = AwaitAlone(CmEventType::kConnectRequest);
    EXPECT_TRUE(event.new_id->Accept(server.queue_pair.get(), {}).ok());
    return event.new_id.release()->number();
  });
  auto adopted = server.device->AdoptId(number, server.queue_pair.get(), {});
  ASSERT_TRUE(adopted.ok()) << adopted.status();
  EXPECT_FALSE(adopted->unaccepted);
  server.id = std::move(adopted->id);
  ASSERT_TRUE(server.device->DestroyUnknownIds().ok());
  CmEvent event;
  ASSERT_TRUE(AwaitEvent(client, server, CmEventType::kEstablished, &event));
  ASSERT_TRUE(AwaitEvent(server, client, CmEventType::kEstablished, &event));
  ExpectData();
  ASSERT_TRUE(server.id->Disconnect().ok());
  ASSERT_TRUE(AwaitEvent(client, server, CmEventType::kDisconnected, &event));
}

TEST_F(SoftTakeOver, shouldEndWhatOnlyTheOpenerKnew) {
  const auto theirs = client.device->Listen({"127.0.0.1", 0}, 8).value();
  const uint32_t port = Follow([&] {
    (void)server.device->Connect({"127.0.0.1", theirs->address().port}, server.queue_pair.get(), {})
        .value()
        .release();
    return server.device->Listen({"127.0.0.1", 0}, 8).value().release()->address().port;
  });
  CmEvent event;
  ASSERT_TRUE(AwaitEvent(client, server, CmEventType::kConnectRequest, &event));
  ASSERT_TRUE(event.new_id->Accept(client.queue_pair.get(), {}).ok());
  client.id = std::move(event.new_id);
  ASSERT_TRUE(AwaitEvent(client, server, CmEventType::kEstablished, &event));
  const auto again = [&] {
    return server.device->Listen({"127.0.0.1", static_cast<uint16_t>(port)}, 8).status();
  };
  EXPECT_TRUE(absl::IsAlreadyExists(again()));
  ASSERT_TRUE(server.device->DestroyUnknownIds().ok());
  ASSERT_TRUE(AwaitEvent(client, server, CmEventType::kDisconnected, &event));
  EXPECT_TRUE(again().ok());
  client.id.reset();
  client.queue_pair = client.MakeQueuePair();
  Ask();  // at the listener of before, which goes on
  ASSERT_TRUE(AwaitEvent(server, client, CmEventType::kConnectRequest, &event));
}

// Nobody was told that the opener had stopped listening.
TEST_F(SoftTakeOver, shouldListenWhereTheOpenerHadStopped) {
  Follow([&] {
    listener.reset();
    return 0u;
  });
  ASSERT_TRUE(server.device->DestroyUnknownIds().ok());
  Ask();
  CmEvent event;
  ASSERT_TRUE(AwaitEvent(server, client, CmEventType::kConnectRequest, &event));
  EXPECT_EQ(event.listener, listener.get());
}

TEST_F(SoftTakeOver, shouldNotAdoptWhatIsNoConnection) {
  Follow([] { return 0u; });
  for (const uint32_t number : {0u, 1u, 77u}) {
    EXPECT_TRUE(absl::IsNotFound(server.device->AdoptId(number, nullptr, {}).status())) << number;
  }
}

// The request of the dead opener may be at the NIC when the next one asks.
TEST_F(SoftTakeOver, shouldExecuteNothingThatTheOpenerHadSentBefore) {
  for (int i = 0; i < 20; ++i) {
    Follow([&] {
      (void)server.queue_pair->SetError();
      return 0u;
    });
    ASSERT_TRUE(server.queue_pair->SetReset().ok());
    ASSERT_TRUE(server.queue_pair->SetInit().ok());
    ASSERT_EQ(server.queue_pair->state(), QueuePairState::kInit);
  }
}

TEST(TakeOver, shouldBeRefusedWhereNobodyCanFollow) {
  const auto embedded = soft::CreateSoftDevice({}).value();
  EXPECT_FALSE(embedded->CheckFollowable().ok());
  EXPECT_FALSE(embedded->TakeOver().ok());
}

}  // namespace
}  // namespace baton::verbs::testing
