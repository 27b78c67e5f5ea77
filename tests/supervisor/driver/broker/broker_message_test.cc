#include "supervisor/driver/broker/broker_message.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lib/nic/control_socket.h"
#include "tests/harness/expectations.h"

namespace baton::driver_process {
namespace {

using nic::SendMessage;

class BrokerMessageTest : public ::testing::Test {
 protected:
  SocketPair sockets_ = MakeSocketPair(SOCK_SEQPACKET).value();
};

TEST_F(BrokerMessageTest, shouldArriveInOrderWithItsDescriptor) {
  Pipe pipe = MakePipe().value();
  const BrokerMessage first = {BrokerMessage::Kind::kAddWorker, 3, 17, 0, 0};
  const BrokerMessage second = {BrokerMessage::Kind::kWatch, 3, 17, 4711, 0};
  ASSERT_TRUE(SendMessage(sockets_.ours.get(), first, pipe.writing.get()));
  ASSERT_TRUE(SendMessage(sockets_.ours.get(), second, -1));
  pipe.writing.Reset();
  const auto added = ReceiveMessage(sockets_.theirs.get());
  ASSERT_TRUE(added.has_value());
  EXPECT_EQ(added->message.kind, BrokerMessage::Kind::kAddWorker);
  EXPECT_EQ(added->message.slot, 3u);
  EXPECT_EQ(added->message.worker_id, 17u);
  ASSERT_TRUE(added->descriptor);
  EXPECT_NE(fcntl(added->descriptor.get(), F_GETFD) & FD_CLOEXEC, 0);
  char byte = 'x';
  EXPECT_EQ(write(added->descriptor.get(), &byte, 1), 1);
  EXPECT_EQ(read(pipe.reading.get(), &byte, 1), 1);
  const auto watched = ReceiveMessage(sockets_.theirs.get());
  ASSERT_TRUE(watched.has_value());
  EXPECT_EQ(watched->message.process, 4711);
  EXPECT_FALSE(watched->descriptor);
  EXPECT_FALSE(ReceiveMessage(sockets_.theirs.get()).has_value());
}

TEST_F(BrokerMessageTest, shouldNotWaitForAReceiverThatDoesNotRead) {
  int sent = 0;
  while (sent < 100'000 && SendMessage(sockets_.ours.get(), BrokerMessage{}, -1)) ++sent;
  EXPECT_GT(sent, 96);  // what a broker may have to read
  EXPECT_LT(sent, 100'000);
}

TEST_F(BrokerMessageTest, shouldFailWhereTheReceiverIsGone) {
  sockets_.theirs.Reset();
  EXPECT_FALSE(SendMessage(sockets_.ours.get(), BrokerMessage{}, -1));
}

}  // namespace
}  // namespace baton::driver_process
