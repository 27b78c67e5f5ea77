#include <gtest/gtest.h>

#include "tests/lib/verbs/devices.h"
#include "tests/lib/verbs/verbs_harness.h"

namespace baton::verbs::testing {
namespace {

class Messages : public ::testing::TestWithParam<DeviceFactory> {
 protected:
  Side client{GetParam().create().value()};
  Side server{GetParam().create().value()};
  Buffer ours{client.device.get(), 8 << 20, kAllAccess};
  Buffer theirs{server.device.get(), 8 << 20, kAllAccess};

  void SetUp() override { Connect(client, server, {.host = GetParam().host}); }
};

TEST_P(Messages, shouldDeliverSendIntoPostedReceive) {
  ours.Fill(0, "hello");
  ASSERT_TRUE(PostReceive(*server.queue_pair, 7, {theirs.Sge(0, 100)}).ok());
  ASSERT_TRUE(PostSend(*client.queue_pair, Request(Opcode::kSend, 3), {ours.Sge(0, 5)}).ok());
  const Completion received = AwaitCompletion(server, client);
  EXPECT_EQ(received.wr_id, 7u);
  EXPECT_EQ(received.status, CompletionStatus::kSuccess);
  EXPECT_EQ(received.opcode, CompletionOpcode::kReceive);
  EXPECT_EQ(received.byte_len, 5u);
  EXPECT_EQ(received.qp_number, server.queue_pair->number());
  EXPECT_FALSE(received.has_immediate);
  EXPECT_EQ(theirs.Text(0, 5), "hello");
  const Completion sent = AwaitCompletion(client, server);
  EXPECT_EQ(sent.wr_id, 3u);
  EXPECT_EQ(sent.status, CompletionStatus::kSuccess);
  EXPECT_EQ(sent.opcode, CompletionOpcode::kSend);
}

INSTANTIATE_TEST_SUITE_P(Devices, Messages, ::testing::ValuesIn(AllDevices()), DeviceName);

}  // namespace
}  // namespace baton::verbs::testing
