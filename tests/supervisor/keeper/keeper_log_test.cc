// The log of baton-driver and its keeper: what they do when nobody reads it, and what
// ServiceConfig.log_level leaves out of it.
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
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

#ifndef BATON_SANITIZED  // a sanitizer may have a thread of its own
TEST_F(FullLogTest, shouldHaveOneThread) {
  ASSERT_NO_FATAL_FAILURE(Start());
  {
    RawClient client(places_.socket());
    ASSERT_EQ(client.Attach(), absl::OkStatus());
    EXPECT_EQ(places_.Describe().workers_size(), 1);
    const pid_t keeper = keeper_->FindChild("baton-keeper");
    ASSERT_GT(keeper, 0);
    const std::filesystem::directory_iterator threads("/proc/" + std::to_string(keeper) + "/task");
    EXPECT_EQ(std::distance(begin(threads), end(threads)), 1);
  }
  ExpectServesAndEnds();
}
#endif

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::KeeperThread;
using ::testing::Not;
using testing::RawClient;

constexpr char kDebugLine[] = "control asks: describe";
constexpr char kInformation[] = "worker_attached: ";

// Returns what a keeper with this level logs while a worker attaches and control asks.
std::string LogAt(v1::LogLevel level) {
  KeeperThread places;  // not started: its directory and its client side
  harness::ChildOptions options;
  options.program = "supervisor/driver/baton-driver";
  options.log_path = places.directory().File("log");
  auto keeper = harness::ChildProcess::Start(options);
  EXPECT_TRUE(keeper.ok()) << keeper.status();
  if (!keeper.ok()) return "";
  std::string config;
  EXPECT_TRUE(google::protobuf::TextFormat::PrintToString(
      places.Config([level](v1::ServiceConfig* service) { service->set_log_level(level); }),
      &config));
  EXPECT_EQ((*keeper)->WriteLine(config), absl::OkStatus());
  (*keeper)->CloseInput();
  const std::string socket = places.management_socket();
  EXPECT_EQ(harness::WaitUntil("the socket", [&] { return access(socket.c_str(), F_OK) == 0; }),
            absl::OkStatus());
  {
    RawClient worker(places.socket());
    EXPECT_EQ(worker.Attach(), absl::OkStatus());
    EXPECT_EQ(places.Describe().workers_size(), 1);
  }
  EXPECT_TRUE((*keeper)->Signal(SIGTERM).ok());
  EXPECT_TRUE((*keeper)->WaitEnd(std::chrono::seconds(10)).ok());
  std::ifstream log(options.log_path);
  return {std::istreambuf_iterator<char>(log), {}};
}

TEST(LogLevelTest, shouldHaveEverythingAtDebug) {
  EXPECT_THAT(LogAt(v1::LOG_LEVEL_DEBUG), AllOf(HasSubstr(kDebugLine), HasSubstr(kInformation)));
}

TEST(LogLevelTest, shouldLeaveOutRequestsAtInfo) {
  EXPECT_THAT(LogAt(v1::LOG_LEVEL_INFO),
              AllOf(Not(HasSubstr(kDebugLine)), HasSubstr(kInformation)));
}

TEST(LogLevelTest, shouldLeaveOutWhatIsNoTroubleAtWarning) {
  EXPECT_THAT(LogAt(v1::LOG_LEVEL_WARNING),
              AllOf(Not(HasSubstr(kDebugLine)), Not(HasSubstr(kInformation))));
}

}  // namespace
}  // namespace baton::keeper
