// baton-driver and its keeper, when nobody reads what it logs.
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

class FullLogTest : public ::testing::Test {
 protected:
  FullLogTest() {
    const std::string log = places_.directory().File("log");
    EXPECT_EQ(mkfifo(log.c_str(), 0600), 0);
    reader_.Reset(open(log.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
    writer_.Reset(open(log.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));
  }

  void Start() {
    harness::ChildOptions options;
    options.program = "/usr/bin/env";
    options.arguments = {"--default-signal=PIPE", "supervisor/driver/baton-driver"};
    options.log_path = places_.directory().File("log");
    auto keeper = harness::ChildProcess::Start(options);
    ASSERT_TRUE(keeper.ok()) << keeper.status();
    keeper_ = *std::move(keeper);
    std::string config;
    ASSERT_TRUE(google::protobuf::TextFormat::PrintToString(places_.Config(nullptr), &config));
    ASSERT_EQ(keeper_->WriteLine(config), absl::OkStatus());
    keeper_->CloseInput();
    ASSERT_EQ(harness::WaitUntil(
                  "the socket",
                  [this] { return access(places_.management_socket().c_str(), F_OK) == 0; }),
              absl::OkStatus());
  }

  void ExpectServesAndEnds() {
    for (int i = 0; i < 20; ++i) {
      RawClient client(places_.socket());
      ASSERT_EQ(client.Attach(), absl::OkStatus());  // an event each
    }
    EXPECT_EQ(places_.Describe().workers_size(), 0);
    EXPECT_TRUE(keeper_->Signal(SIGTERM).ok());
    EXPECT_TRUE(keeper_->WaitEnd(std::chrono::seconds(10)).ok());
  }

  KeeperThread places_;  // not started: its directory and its client side
  FileDescriptor reader_, writer_;
  std::unique_ptr<harness::ChildProcess> keeper_;
};

TEST_F(FullLogTest, shouldServeAndEndThoughNobodyReadsItsLog) {
  const std::string page(4096, '.');
  while (write(writer_.get(), page.data(), page.size()) > 0) {
  }
  ASSERT_NO_FATAL_FAILURE(Start());
  ExpectServesAndEnds();
}

TEST_F(FullLogTest, shouldServeAndEndThoughItsLogIsClosed) {
  ASSERT_NO_FATAL_FAILURE(Start());
  reader_.Reset();
  ExpectServesAndEnds();
}

}  // namespace
}  // namespace baton::keeper
