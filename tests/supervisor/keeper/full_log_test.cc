// baton-keeper itself, when nobody reads what it logs.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <string>

#include "google/protobuf/text_format.h"
#include "lib/base/file_descriptor.h"
#include "tests/harness/child_process.h"
#include "tests/harness/wait_until.h"
#include "tests/supervisor/keeper/keeper_thread.h"

namespace baton::keeper {
namespace {

using testing::KeeperThread;
using testing::RawClient;

TEST(FullLogTest, shouldServeAndEndThoughNobodyReadsItsLog) {
  KeeperThread places;  // not started: its directory and its client side
  const std::string log = places.directory().File("log");
  ASSERT_EQ(mkfifo(log.c_str(), 0600), 0);
  const FileDescriptor reader(open(log.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  const FileDescriptor writer(open(log.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));
  const std::string page(4096, '.');
  while (write(writer.get(), page.data(), page.size()) > 0) {
  }
  harness::ChildOptions options;
  options.program = "supervisor/keeper/baton-keeper";
  options.log_path = log;
  const auto keeper = harness::ChildProcess::Start(options);
  ASSERT_TRUE(keeper.ok()) << keeper.status();
  std::string config;
  ASSERT_TRUE(google::protobuf::TextFormat::PrintToString(places.Config(nullptr), &config));
  ASSERT_EQ((*keeper)->WriteLine(config), absl::OkStatus());
  (*keeper)->CloseInput();
  ASSERT_EQ(
      harness::WaitUntil("the socket",
                         [&] { return access(places.management_socket().c_str(), F_OK) == 0; }),
      absl::OkStatus());
  for (int i = 0; i < 20; ++i) {
    RawClient client(places.socket());
    ASSERT_EQ(client.Attach(), absl::OkStatus());  // an event each
  }
  EXPECT_EQ(places.Describe().workers_size(), 0);
  EXPECT_TRUE((*keeper)->Signal(SIGTERM).ok());
  EXPECT_TRUE((*keeper)->WaitEnd(std::chrono::seconds(10)).ok());
}

}  // namespace
}  // namespace baton::keeper
