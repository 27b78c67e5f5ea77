// baton-driver and its keeper, as batond sees that it lives.
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "google/protobuf/text_format.h"
#include "lib/base/file_descriptor.h"
#include "lib/base/heartbeat.h"
#include "tests/harness/child_process.h"
#include "tests/harness/patience.h"
#include "tests/supervisor/keeper/keeper_thread.h"

namespace baton::keeper {
namespace {

using testing::KeeperThread;

// Also that what it says of a hang is what its policy says.
TEST(HeartbeatTest, shouldShowItselfFromItsLoopAgainAndAgain) {
  KeeperThread places;  // not started: its directory
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);  // inherited
  const FileDescriptor reader(ends[0]);
  FileDescriptor writer(ends[1]);
  harness::ChildOptions options;
  options.program = "supervisor/driver/baton-driver";
  options.environment = {{"BATON_HEARTBEAT_FD", std::to_string(writer.get())}};
  const auto keeper = harness::ChildProcess::Start(options);
  ASSERT_TRUE(keeper.ok()) << keeper.status();
  writer.Reset();
  std::string config;
  ASSERT_TRUE(
      google::protobuf::TextFormat::PrintToString(places.Config([](v1::ServiceConfig* service) {
        service->mutable_policy()->set_on_keeper_hang(v1::ON_KEEPER_HANG_RESTART);
      }),
                                                  &config));
  ASSERT_EQ((*keeper)->WriteLine(config), absl::OkStatus());
  (*keeper)->CloseInput();
  const auto next = [&] {
    pollfd entry = {reader.get(), POLLIN, 0};
    char sign = 0;
    EXPECT_EQ(poll(&entry, 1, 20'000 * harness::Slowness()), 1);
    EXPECT_EQ(read(reader.get(), &sign, 1), 1);
    return static_cast<AfterLastSign>(sign);
  };
  EXPECT_EQ(next(), AfterLastSign::kRestart);
  EXPECT_EQ(next(), AfterLastSign::kRestart);
  internal::ManagementRequest request;
  request.mutable_set_policy()->mutable_policy()->set_on_keeper_hang(v1::ON_KEEPER_HANG_REPORT);
  ASSERT_TRUE(places.Ask(request).ok());
  AfterLastSign sign = next();
  if (sign == AfterLastSign::kRestart) sign = next();  // was on its way
  EXPECT_EQ(sign, AfterLastSign::kReport);
}

}  // namespace
}  // namespace baton::keeper
