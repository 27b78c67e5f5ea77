// A test that starts with two connected devices.
#ifndef TESTS_LIB_VERBS_CONNECTED_TEST_H_
#define TESTS_LIB_VERBS_CONNECTED_TEST_H_

#include <gtest/gtest.h>

#include "tests/lib/verbs/devices.h"
#include "tests/lib/verbs/verbs_harness.h"

namespace baton::verbs::testing {

class ConnectedTest : public ::testing::TestWithParam<DeviceFactory> {
 protected:
  static constexpr size_t kBytes = 8 << 20;

  void Join(ConnectOptions options = {}) {
    options.host = GetParam().host;
    Connect(client, server, options);
  }

  // The next completions of either side, checked for id and status.
  void ExpectClient(uint64_t wr_id, CompletionStatus status) {
    Expect(AwaitCompletion(client, server), wr_id, status);
  }
  void ExpectServer(uint64_t wr_id, CompletionStatus status) {
    Expect(AwaitCompletion(server, client), wr_id, status);
  }
  static void Expect(const Completion& completion, uint64_t wr_id, CompletionStatus status) {
    EXPECT_EQ(completion.wr_id, wr_id);
    EXPECT_EQ(CompletionStatusName(completion.status), CompletionStatusName(status));
  }

  Side client{GetParam().create().value()};
  Side server{GetParam().create().value()};
  Buffer ours{client.device.get(), kBytes, kAllAccess};
  Buffer theirs{server.device.get(), kBytes, kAllAccess};
};

}  // namespace baton::verbs::testing

#endif  // TESTS_LIB_VERBS_CONNECTED_TEST_H_
