// The demonstration, small: it does what it says, and its JSON has what others read from it.
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/base/file_descriptor.h"
#include "tests/harness/binaries.h"
#include "tests/harness/child_process.h"
#include "tests/harness/file_content.h"
#include "tests/harness/peer_process.h"
#include "tests/harness/temp_directory.h"
#include "tests/harness/wait_until.h"

namespace baton::demo {
namespace {

constexpr std::chrono::seconds kLong{120};

void ShowEverything(const char* mode) {
  auto directory = harness::TempDirectory::Create();
  ASSERT_TRUE(directory.ok()) << directory.status();
  auto program = harness::Binaries().Find("demo");
  ASSERT_TRUE(program.ok()) << program.status();
  harness::ChildOptions options;
  options.program = *program;
  options.log_path = directory->File("log");
  options.arguments = {
      "--mode", mode, "--json", "--html", "--output", directory->File("out"), "--connections", "8",
      "--shards", "2",
      // Its threads have real-time priorities: the rest leaves time to what starts.
      "--rate", "1000", "--handoffs", "2", "--upgrades", "2", "--bad-upgrades", "3", "--crashes",
      "2", "--hangs", "1", "--cold-crashes", "1", "--driver-kills", "2", "--control-kills", "1",
      "--poisons", "1", "--baseline-runs", "1", "--keeper-kills", "2", "--baton-upgrades", "1",
      "--batond-kills", "1"};
  auto demo = harness::ChildProcess::Start(options);
  ASSERT_TRUE(demo.ok()) << demo.status();
  auto line = (*demo)->ReadLine(kLong);
  ASSERT_TRUE(line.ok()) << line.status();
  auto status = (*demo)->WaitEnd(kLong);
  ASSERT_TRUE(status.ok()) << status.status();
  auto json = harness::JsonObject::Parse(*line);
  ASSERT_TRUE(json.ok()) << json.status();

  EXPECT_TRUE(WIFEXITED(*status) && WEXITSTATUS(*status) == 0) << *line << (*demo)->LogTail();
  EXPECT_TRUE(json->Flag("ok"));
  EXPECT_NE(line->find(std::string("\"mode\":\"") + mode), std::string::npos) << *line;
  EXPECT_TRUE(json->Flag("all_run"));
  EXPECT_EQ(json->Count("connections"), 8u);
  EXPECT_GT(json->Count("messages"), 1000u);
  for (const char* name :
       {"lost", "duplicated", "reordered", "corrupt", "wrong_total", "disconnects"}) {
    EXPECT_TRUE(json->Has(name)) << name;
    EXPECT_EQ(json->Count(name), 0u) << name;
  }
  std::vector<std::pair<std::string, uint64_t>> kinds = {
      {"handoff", 2},       {"upgrade", 2},     {"bad_upgrade", 3},  {"crash_hot", 2},
      {"hang", 1},          {"crash_cold", 1},  {"control_kill", 1}, {"keeper_kill", 2},
      {"baton_upgrade", 1}, {"batond_kill", 1}, {"poison", 1}};
  if (std::string(mode) == "brokered") kinds.emplace_back("driver_kill", 2);
  for (const auto& [kind, count] : kinds) {
    EXPECT_EQ(json->Count(kind + ".count"), count) << kind;
    EXPECT_EQ(json->Count(kind + ".ok"), count) << kind;
    for (const char* value : {"p50", "p99", "max"}) {
      EXPECT_GT(json->Number(kind + ".blackout_us." + value), 0) << kind;
    }
  }
  EXPECT_GT(json->Number("upgrade_start_us.max"), 0);
  EXPECT_EQ(json->Count("baseline.disconnects"), 8u);
  EXPECT_GT(json->Number("baseline.gap_us.max"), 0);
  for (const char* const event : {"drain", "crash"}) {
    const std::string kind = std::string("standby.") + event;
    EXPECT_EQ(json->Count(kind + ".count"), 1u) << kind;
    EXPECT_EQ(json->Count(kind + ".ok"), 1u) << kind;
    EXPECT_GT(json->Number(kind + ".blackout_us.max"), 0) << kind;
  }
  EXPECT_TRUE(json->Has("sentence"));
  // README shows it.
  const std::filesystem::path output = directory->File("out");
  EXPECT_LT(std::filesystem::file_size(output / "timeline.svg"), 60u << 10);
  const std::string picture = harness::ReadFile(output / "timeline.svg");
  const std::string page = harness::ReadFile(output / "demo.html");
  for (const char* const title : {"control process killed", "batond killed"}) {
    EXPECT_THAT(picture, testing::HasSubstr(title));
    EXPECT_THAT(page, testing::HasSubstr(title));
  }
  // The timelines of all three services.
  EXPECT_THAT(std::vector<std::string>(absl::StrSplit(page, "\"replies\":[")), testing::SizeIs(4));
  // Standard error is no terminal.
  const std::string log = (*demo)->LogTail();
  EXPECT_EQ(log.find('\x1b'), std::string::npos) << log;
}

TEST(DemoTest, ShowsEveryEventAndLosesNothing) { ShowEverything("brokered"); }

TEST(DemoTest, ShowsTheSameOfNativeWorkers) { ShowEverything("native"); }

// A terminal, and all that was written to it.
class Screen {
 public:
  Screen(uint16_t columns, uint16_t rows) : master_(posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC)) {
    const winsize size = {rows, columns, 0, 0};
    if (grantpt(master_.get()) != 0 || unlockpt(master_.get()) != 0) return;
    path_ = ptsname(master_.get());
    // While we have it open, what has been written is kept though the writer has ended.
    slave_ = FileDescriptor(open(path_.c_str(), O_RDWR | O_NOCTTY | O_CLOEXEC));
    ioctl(slave_.get(), TIOCSWINSZ, &size);
    reader_ = std::thread([this] { Read(); });
  }
  ~Screen() { Close(); }

  const std::string& path() const { return path_; }
  // Returns when `text` has been written.
  bool WaitFor(const std::string& text) {
    return harness::WaitUntil(
               text, [&] { return Text().find(text) != std::string::npos; }, kLong)
        .ok();
  }
  // REQUIRES: nobody else has it open.
  std::string Close() {
    slave_.Reset();
    if (reader_.joinable()) reader_.join();
    return text_;
  }

 private:
  void Read() {
    char bytes[4096];
    ssize_t count;  // EIO: nobody writes any more
    while ((count = read(master_.get(), bytes, sizeof(bytes))) > 0) {
      const std::lock_guard<std::mutex> lock(mutex_);
      text_.append(bytes, static_cast<size_t>(count));
    }
  }
  std::string Text() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return text_;
  }

  FileDescriptor master_, slave_;
  std::string path_;
  std::mutex mutex_;
  std::string text_;
  std::thread reader_;
};

harness::ChildOptions SmallOn(const Screen& screen, const harness::TempDirectory& directory,
                              const char* handoffs = "2") {
  harness::ChildOptions options;
  options.program = *harness::Binaries().Find("demo");
  options.log_path = screen.path();
  options.environment = {{"TERM", "xterm"}, {"NO_COLOR", "1"}, {"LC_ALL", "C"}};
  options.arguments = {"--output",         directory.File("out"),
                       "--connections",    "2",
                       "--shards",         "1",
                       "--rate",           "1000",
                       "--upgrades",       "0",
                       "--bad-upgrades",   "0",
                       "--crashes",        "0",
                       "--batond-kills",   "0",
                       "--keeper-kills",   "0",
                       "--baton-upgrades", "0",
                       "--hangs",          "0",
                       "--poisons",        "0",
                       "--cold-crashes",   "0",
                       "--handoffs",       handoffs,
                       "--control-kills",  "0",
                       "--baseline-runs",  "0"};
  return options;
}

TEST(DemoTest, ShowsItselfOnATerminal) {
  auto directory = harness::TempDirectory::Create();
  ASSERT_TRUE(directory.ok()) << directory.status();
  Screen screen(80, 24);
  auto demo = harness::ChildProcess::Start(SmallOn(screen, *directory));
  ASSERT_TRUE(demo.ok()) << demo.status();
  auto status = (*demo)->WaitEnd(kLong);
  ASSERT_TRUE(status.ok()) << status.status();
  EXPECT_TRUE(WIFEXITED(*status) && WEXITSTATUS(*status) == 0);
  const std::string text = screen.Close();
  EXPECT_NE(text.find("planned handoff to a standby          2 of  2"), std::string::npos) << text;
  EXPECT_NE(text.find("The demonstration has ended"), std::string::npos) << text;
  EXPECT_NE(text.find("lost 0  duplicated 0  reordered 0  disconnects 0"), std::string::npos);
  EXPECT_EQ(text.find("\x1b[?25l"), std::string::npos);  // the cursor was never hidden
}

TEST(DemoTest, LeavesTheCursorWhenItIsInterrupted) {
  auto directory = harness::TempDirectory::Create();
  ASSERT_TRUE(directory.ok()) << directory.status();
  Screen screen(60, 10);
  harness::ChildOptions options = SmallOn(screen, *directory, "100000");
  auto demo = harness::ChildProcess::Start(options);
  ASSERT_TRUE(demo.ok()) << demo.status();
  EXPECT_TRUE(screen.WaitFor("> planned handoff to a standby: "));
  ASSERT_TRUE((*demo)->Signal(SIGINT).ok());
  auto status = (*demo)->WaitEnd(kLong);
  ASSERT_TRUE(status.ok()) << status.status();
  EXPECT_TRUE(WIFSIGNALED(*status) && WTERMSIG(*status) == SIGINT);
  const std::string text = screen.Close();
  EXPECT_EQ(text.find("\x1b[?"), std::string::npos);  // no mode of the terminal was changed
}

TEST(DemoTest, PrintsLinesWhereItIsAskedFor) {
  auto directory = harness::TempDirectory::Create();
  ASSERT_TRUE(directory.ok()) << directory.status();
  Screen screen(80, 24);
  harness::ChildOptions options = SmallOn(screen, *directory);
  options.arguments.emplace_back("--no-live");
  auto demo = harness::ChildProcess::Start(options);
  ASSERT_TRUE(demo.ok()) << demo.status();
  auto status = (*demo)->WaitEnd(kLong);
  ASSERT_TRUE(status.ok()) << status.status();
  const std::string text = screen.Close();
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
  EXPECT_NE(text.find("  handoff "), std::string::npos) << text;
}

}  // namespace
}  // namespace baton::demo
