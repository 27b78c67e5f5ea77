#include "tests/harness/child_process.h"

#include <signal.h>
#include <sys/wait.h>

#include <chrono>
#include <memory>
#include <string>

#include "gtest/gtest.h"
#include "tests/harness/peer_process.h"
#include "tests/harness/temp_directory.h"

namespace baton::harness {
namespace {

constexpr std::chrono::seconds kLong{10};
constexpr std::chrono::milliseconds kShort{20};

std::unique_ptr<ChildProcess> StartShell(const std::string& script, const std::string& log = {}) {
  auto child = ChildProcess::Start({.program = "/bin/sh",
                                    .arguments = {"-c", script},
                                    .environment = {{"GREETING", "hi"}},
                                    .log_path = log});
  EXPECT_TRUE(child.ok()) << child.status();
  return *std::move(child);
}

TEST(ChildProcessTest, CapturesLinesAndTheEnd) {
  auto child = StartShell("echo one; echo \"$GREETING\"; exit 3");
  EXPECT_EQ(*child->ReadLine(kLong), "one");
  EXPECT_EQ(*child->ReadLine(kLong), "hi");
  EXPECT_TRUE(absl::IsUnavailable(child->ReadLine(kLong).status()));
  auto status = child->WaitEnd(kLong);
  ASSERT_TRUE(status.ok());
  EXPECT_EQ(WEXITSTATUS(*status), 3);
  EXPECT_TRUE(child->HasEnded());
  EXPECT_FALSE(child->Signal(SIGTERM).ok());
}

TEST(ChildProcessTest, SkipsOtherLines) {
  auto child = StartShell("echo noise; echo ready now; cat");
  EXPECT_EQ(*child->ReadLineWith("ready", kLong), "ready now");
}

TEST(ChildProcessTest, WaitsAreBounded) {
  auto child = StartShell("cat");
  EXPECT_TRUE(absl::IsDeadlineExceeded(child->ReadLine(kShort).status()));
  EXPECT_TRUE(absl::IsDeadlineExceeded(child->WaitEnd(kShort).status()));
  EXPECT_FALSE(child->HasEnded());
}

TEST(ChildProcessTest, TalksThroughInput) {
  auto child = StartShell("while read line; do echo \"got $line\"; done; echo end");
  ASSERT_TRUE(child->WriteLine("a").ok());
  EXPECT_EQ(*child->ReadLine(kLong), "got a");
  child->CloseInput();
  EXPECT_EQ(*child->ReadLine(kLong), "end");
}

TEST(ChildProcessTest, KillIsSeen) {
  auto child = StartShell("cat");
  ASSERT_TRUE(child->Kill().ok());
  auto status = child->WaitEnd(kLong);
  ASSERT_TRUE(status.ok());
  EXPECT_TRUE(WIFSIGNALED(*status));
}

TEST(ChildProcessTest, EndsTheChildWithItself) {
  pid_t pid;
  {
    auto child = StartShell("exec cat");
    pid = child->pid();
    EXPECT_EQ(kill(pid, 0), 0);
  }
  EXPECT_NE(kill(pid, 0), 0);
}

TEST(ChildProcessTest, ShowsTheLogOfAChildThatFails) {
  auto directory = TempDirectory::Create();
  ASSERT_TRUE(directory.ok());
  auto child = StartShell("echo trouble >&2; exit 1", directory->File("log"));
  const absl::Status status = child->ReadLine(kLong).status();
  EXPECT_NE(std::string(status.message()).find("trouble"), std::string::npos) << status;
}

TEST(ChildProcessTest, MissingProgramIsAnError) {
  ChildOptions options;
  options.program = "/nonexistent";
  EXPECT_FALSE(ChildProcess::Start(options).ok());
}

TEST(JsonObjectTest, ReadsByPath) {
  auto json = JsonObject::Parse(R"({"a":{"b":2.5,"c":true},"n":7})");
  ASSERT_TRUE(json.ok());
  EXPECT_EQ(json->Number("a.b"), 2.5);
  EXPECT_TRUE(json->Flag("a.c"));
  EXPECT_EQ(json->Count("n"), 7u);
  EXPECT_FALSE(json->Has("a.x"));
  EXPECT_EQ(json->Number("a.b.c"), 0);
  EXPECT_FALSE(JsonObject::Parse("nonsense").ok());
}

}  // namespace
}  // namespace baton::harness
