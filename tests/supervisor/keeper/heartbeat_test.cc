// baton-keeper itself, as batond sees that it lives.
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "google/protobuf/text_format.h"
#include "lib/base/file_descriptor.h"
#include "tests/harness/child_process.h"
#include "tests/harness/patience.h"
#include "tests/supervisor/keeper/keeper_thread.h"

namespace baton::keeper {
namespace {

using testing::KeeperThread;

TEST(HeartbeatTest, shouldShowItselfFromItsLoopAgainAndAgain) {
  KeeperThread places;  // not started: its directory
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);  // inherited
  const FileDescriptor reader(ends[0]);
  FileDescriptor writer(ends[1]);
  harness::ChildOptions options;
  options.program = "supervisor/keeper/baton-keeper";
  options.environment = {{"BATON_HEARTBEAT_FD", std::to_string(writer.get())}};
  const auto keeper = harness::ChildProcess::Start(options);
  ASSERT_TRUE(keeper.ok()) << keeper.status();
  writer.Reset();
  std::string config;
  ASSERT_TRUE(google::protobuf::TextFormat::PrintToString(places.Config(nullptr), &config));
  ASSERT_EQ((*keeper)->WriteLine(config), absl::OkStatus());
  (*keeper)->CloseInput();
  for (int i = 0; i < 2; ++i) {
    pollfd entry = {reader.get(), POLLIN, 0};
    ASSERT_EQ(poll(&entry, 1, 20'000 * harness::Slowness()), 1);
    char sign = 0;
    ASSERT_EQ(read(reader.get(), &sign, 1), 1);
  }
}

}  // namespace
}  // namespace baton::keeper
