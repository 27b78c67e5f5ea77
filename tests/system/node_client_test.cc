// A client that we did not write does what an operator does: Node's stock gRPC library, the .proto
// files, and tests/system/node_client/operator_client.js.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "google/protobuf/util/json_util.h"
#include "tests/harness/cluster.h"

namespace baton {
namespace {

constexpr std::chrono::seconds kAll{150};
constexpr uint32_t kWatchMs = 50;

// Where the libraries are; empty, with `why`: they cannot be had.
std::string Libraries(std::string* why) {
  harness::ChildOptions prepare;
  prepare.program = "tests/system/node_client/prepare.sh";
  prepare.log_path = std::string(std::getenv("TEST_TMPDIR")) + "/prepare.log";
  auto child = harness::ChildProcess::Start(prepare);
  if (!child.ok()) {
    *why = std::string(child.status().message());
    return "";
  }
  const auto line = (*child)->ReadLine(kAll);
  if (line.ok()) return *line;
  *why = (*child)->LogTail();
  return "";
}

TEST(NodeClientTest, shouldListMoveUpgradeRollBackAndFollow) {
  std::string why;
  const std::string libraries = Libraries(&why);
  if (libraries.empty()) GTEST_SKIP() << "Node's gRPC library is not to be had: " << why;
  auto cluster = harness::Cluster::Start(harness::ClusterOptions());
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  auto owner = (*cluster)->StartLedger(1), standby = (*cluster)->StartLedger(1);
  ASSERT_TRUE(owner.ok() && standby.ok()) << owner.status() << standby.status();
  ASSERT_TRUE((*cluster)->WaitUntilOwner((*owner)->id).ok());
  auto peer = (*cluster)->StartPeer(harness::PeerOptions());
  ASSERT_TRUE(peer.ok()) << peer.status();

  v1::UpgradePlan plan;
  const auto program = harness::Binaries().Find("ledger-v2");
  ASSERT_TRUE(program.ok()) << program.status();
  plan.set_exec(*program);
  plan.set_watch_window_ms(kWatchMs);
  std::string json;
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  ASSERT_TRUE(google::protobuf::util::MessageToJsonString(plan, &json, options).ok());

  harness::ChildOptions node;
  node.program = "/usr/bin/env";
  node.environment = {{"NODE_PATH", libraries + "/node_modules"}};
  node.log_path = std::string(std::getenv("TEST_TMPDIR")) + "/node.log";
  node.arguments = {"node",
                    "tests/system/node_client/operator_client.js",
                    (*cluster)->OperatorSocketPath(),
                    std::filesystem::current_path().string(),
                    "ledger",
                    absl::StrCat((*standby)->id),
                    json};
  auto client = harness::ChildProcess::Start(node);
  ASSERT_TRUE(client.ok()) << client.status();
  const auto line = (*client)->ReadLine(kAll);
  EXPECT_TRUE(line.ok() && *line == "ok") << (*client)->LogTail();
  const auto end = (*client)->WaitEnd(std::chrono::seconds(10));
  EXPECT_TRUE(end.ok() && *end == 0);
  // What an operator does, peers do not notice.
  ASSERT_TRUE((*peer)->Settle().ok());
  const auto result = (*peer)->Stop();
  EXPECT_TRUE(result.ok() && result->Flag("ok"));
}

}  // namespace
}  // namespace baton
