// baton-driver and its keeper: what ServiceConfig.log_level leaves out of its log.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>

#include "google/protobuf/text_format.h"
#include "tests/harness/child_process.h"
#include "tests/harness/wait_until.h"
#include "tests/supervisor/keeper/keeper_thread.h"

namespace baton::keeper {
namespace {

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
