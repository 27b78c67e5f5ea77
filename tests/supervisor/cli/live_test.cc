// Commands that go on: --watch and `baton top`, in pipes and on a terminal.
#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>
#include <utmp.h>

#include <algorithm>
#include <fstream>
#include <future>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/base/file_descriptor.h"
#include "supervisor/cli/terminal.h"
#include "tests/harness/binaries.h"
#include "tests/harness/wait_until.h"
#include "tests/supervisor/cli/cli_fixture.h"

namespace baton {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

size_t Count(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

class LiveTest : public CliFixture {
 protected:
  // Its exit code. It runs in this process, so a signal to this process is for it.
  std::future<int> Begin(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"--state-dir", state_dir_});
    return std::async(std::launch::async, [this, arguments] {
      std::istringstream in;
      std::ostream out(&out_), err(&err_);
      return RunCli(arguments, Console{.in = in, .out = out, .err = err});
    });
  }

  void AwaitCount(const std::string& part, size_t count) {
    ASSERT_TRUE(harness::WaitUntil(part, [&] { return Count(out_.text(), part) >= count; }).ok())
        << out_.text() << err_.text();
  }

  SharedText out_, err_;
};

TEST_F(LiveTest, WatchShouldLookAgainUntilItIsInterrupted) {
  auto code = Begin({"shard", "list", "kv", "--watch=0.1"});
  AwaitCount("SHARD", 3);
  kill(getpid(), SIGINT);
  EXPECT_EQ(code.get(), kExitOk);
  EXPECT_THAT(out_.text(), HasSubstr("no worker is ready\n\nSHARD"));  // blocks
  EXPECT_EQ(err_.text(), "");
}

// A script ignores interrupts for what it starts in the background.
TEST_F(LiveTest, WatchShouldEndWhereInterruptsWereIgnored) {
  const auto former = signal(SIGINT, SIG_IGN);
  auto code = Begin({"shard", "list", "kv", "--watch=0.1"});
  AwaitCount("SHARD", 1);
  kill(getpid(), SIGINT);
  EXPECT_EQ(code.get(), kExitOk);
  EXPECT_EQ(signal(SIGINT, former), SIG_IGN);  // as it was
}

TEST_F(LiveTest, WatchShouldOutliveControl) {
  auto code = Begin({"--timeout", "0.1", "service", "list", "--watch=0.1", "-o", "json"});
  AwaitCount("\"services\"", 1);
  control_.reset();
  ASSERT_TRUE(WaitFor(err_, "trying again"));
  const size_t before = Count(out_.text(), "\"services\"");
  StartControl();
  AwaitCount("\"services\"", before + 1);
  kill(getpid(), SIGINT);
  EXPECT_EQ(code.get(), kExitOk);
}

TEST_F(LiveTest, WatchShouldFailAtOnceWhenTheFirstLookDoes) {
  EXPECT_EQ(Begin({"shard", "list", "kw", "--watch"}).get(), kExitNotFound);
  EXPECT_EQ(out_.text(), "");
}

TEST_F(LiveTest, TopShouldPrintBlocksWhereThereIsNoTerminal) {
  EXPECT_EQ(Begin({"top", "-n", "2", "-d", "0.1"}).get(), kExitOk);
  const std::string text = out_.text();
  EXPECT_EQ(Count(text, "SERVICE  STATE"), 2u) << text;
  EXPECT_THAT(text, Not(HasSubstr("\x1b")));
  // The counters stand still, and the second look knows it.
  EXPECT_THAT(text.substr(text.rfind("SERVICE  STATE")),
              HasSubstr("kv       waiting          2/2      3         0       0        0"));
}

TEST_F(LiveTest, TopShouldEndWhenItIsInterrupted) {
  auto code = Begin({"top", "-d", "0.1"});
  AwaitCount("BLACKOUTS", 2);
  kill(getpid(), SIGINT);
  EXPECT_EQ(code.get(), kExitOk);
}

TEST(RedrawTest, ShouldFitTheScreen) {
  EXPECT_EQ(Redraw("one\ntwo\n", {.rows = 4, .columns = 80}),
            "\x1b[Hone\x1b[K\r\ntwo\x1b[K\r\n\x1b[J");
  EXPECT_EQ(Redraw("1\n2\n3\n4\n", {.rows = 4, .columns = 80}),
            "\x1b[H1\x1b[K\r\n2\x1b[K\r\n(2 more lines)\x1b[K\r\n\x1b[J");
  EXPECT_EQ(Redraw("abcdef\n", {.rows = 4, .columns = 3}), "\x1b[Habc\x1b[K\r\n\x1b[J");
  EXPECT_EQ(FirstColumns("a\x1b[31mbcdef\x1b[0m\xc3\xa9", 3), "a\x1b[31mbc\x1b[0m");
}

// ---------------------------------------------------------------- on a terminal

// Returns the pointers that execve(2) expects, a null behind them.
std::vector<char*> PointersTo(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

// A terminal of 24 lines with 80 columns, and baton on it.
class TerminalTest : public CliFixture {
 protected:
  void StartBaton(std::vector<std::string> arguments, const std::string& type = "xterm",
                  const std::string& no_color = "") {
    const std::string program = *harness::Binaries().Find("baton");
    arguments.insert(arguments.begin(), {program, "--state-dir", state_dir_});
    std::vector<std::string> variables = {"TERM=" + type, "NO_COLOR=" + no_color};
    for (char** one = environ; *one != nullptr; ++one) {
      const std::string variable = *one;
      if (!absl::StartsWith(variable, "TERM=") && !absl::StartsWith(variable, "NO_COLOR=")) {
        variables.push_back(variable);
      }
    }
    // The child allocates nothing: another thread may have had the allocator's lock at the fork.
    std::vector<char*> argv = PointersTo(arguments), envp = PointersTo(variables);
    winsize size = {.ws_row = 24, .ws_col = 80, .ws_xpixel = 0, .ws_ypixel = 0};
    int terminal = -1, line = -1;
    ASSERT_EQ(openpty(&terminal, &line, nullptr, nullptr, &size), 0);
    terminal_.Reset(terminal);
    line_.Reset(line);
    ASSERT_EQ(tcgetattr(line, &modes_), 0);
    pid_ = fork();
    if (pid_ == 0) {
      login_tty(line);
      execve(argv[0], argv.data(), envp.data());
      _exit(127);
    }
  }

  void TearDown() override {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    CliFixture::TearDown();
  }

  // What it has written until `part` was there, from now on.
  std::string ReadUntil(const std::string& part) {
    std::string text;
    const auto found = [&] {
      pollfd entry = {terminal_.get(), POLLIN, 0};
      if (poll(&entry, 1, 10) == 1) {
        char bytes[4096];
        const ssize_t size = read(terminal_.get(), bytes, sizeof(bytes));
        if (size > 0) text.append(bytes, static_cast<size_t>(size));
      }
      return text.find(part) != std::string::npos;
    };
    EXPECT_TRUE(harness::WaitUntil(part, found).ok()) << text;
    return text;
  }

  void Press(char key) { ASSERT_EQ(write(terminal_.get(), &key, 1), 1); }

  // The status of waitpid(2).
  int WaitEnd() {
    int status = -1;
    EXPECT_TRUE(harness::WaitUntil("its end", [&] {
                  char ignored[4096];  // so that it is not stopped by what nobody reads
                  pollfd entry = {terminal_.get(), POLLIN, 0};
                  if (poll(&entry, 1, 0) == 1) {
                    last_.append(ignored, static_cast<size_t>(std::max<ssize_t>(
                                              read(terminal_.get(), ignored, sizeof(ignored)), 0)));
                  }
                  return waitpid(pid_, &status, WNOHANG) == pid_;
                }).ok());
    pid_ = 0;
    return status;
  }

  void ExpectTerminalAsBefore() {
    termios modes;
    ASSERT_EQ(tcgetattr(line_.get(), &modes), 0);
    EXPECT_EQ(modes.c_lflag, modes_.c_lflag);
    EXPECT_EQ(modes.c_cc[VSUSP], modes_.c_cc[VSUSP]);
    for (pollfd entry = {terminal_.get(), POLLIN, 0}; poll(&entry, 1, 0) == 1;) {
      char bytes[4096];
      const ssize_t size = read(terminal_.get(), bytes, sizeof(bytes));
      if (size <= 0) break;
      last_.append(bytes, static_cast<size_t>(size));
    }
    EXPECT_THAT(last_, HasSubstr("\x1b[?25h\x1b[?1049l"));
  }

  FileDescriptor terminal_, line_;
  termios modes_ = {};
  pid_t pid_ = 0;
  std::string last_;  // what it wrote before its end
};

TEST_F(TerminalTest, TopShouldFillTheScreenAndObeyKeys) {
  StartBaton({"top", "-d", "0.2"});
  const std::string first = ReadUntil("UNACKED\x1b[K");
  EXPECT_THAT(first, StartsWith("\x1b[?1049h\x1b[?25l"));
  EXPECT_THAT(first, HasSubstr("by shard; q quit, s sort, p pause"));
  const std::vector<std::string> lines = absl::StrSplit(first, "\r\n");
  for (const std::string& line : lines) {
    EXPECT_LE(line.size(), 80u + 20u) << line;  // with what it tells the terminal
  }
  Press('s');
  ReadUntil("by commits");
  Press('p');
  ReadUntil("PAUSED");
  Press('p');
  ReadUntil("q quit");
  Press('q');
  const int status = WaitEnd();
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == kExitOk) << status;
  ExpectTerminalAsBefore();
}

TEST_F(TerminalTest, TopShouldGiveTheTerminalBackWhenItIsInterrupted) {
  StartBaton({"top", "-d", "0.2"});
  ReadUntil("UNACKED");
  Press('\x03');
  const int status = WaitEnd();
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == kExitOk) << status;
  ExpectTerminalAsBefore();
}

TEST_F(TerminalTest, TopShouldGiveTheTerminalBackWhenItIsTerminated) {
  StartBaton({"top", "-d", "0.2"});
  ReadUntil("UNACKED");
  kill(pid_, SIGTERM);
  const int status = WaitEnd();
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM) << status;
  ExpectTerminalAsBefore();
}

TEST_F(TerminalTest, TopShouldStayWhenControlIsAway) {
  StartBaton({"top", "-d", "0.2"});
  ReadUntil("q quit");
  control_.reset();
  ReadUntil("NOT NOW: cannot reach batond");
  StartControl();
  ReadUntil("q quit");
  Press('q');
  EXPECT_EQ(WaitEnd(), 0);
}

TEST_F(TerminalTest, WatchShouldRedrawInPlace) {
  StartBaton({"service", "list", "--watch=0.1"});
  const std::string text = ReadUntil("\x1b[J\x1b[HSERVICE");
  EXPECT_THAT(text, StartsWith("\x1b[2J\x1b[HSERVICE"));
  Press('\x03');
  EXPECT_EQ(WaitEnd(), 0);
}

TEST_F(TerminalTest, StatesShouldHaveColours) {
  StartBaton({"service", "list"});
  ReadUntil("kv       \x1b[33mwaiting\x1b[0m      soft");
}

TEST_F(TerminalTest, NobodyShouldGetColoursWhoDoesNotWantThem) {
  StartBaton({"service", "list"}, "xterm", "1");
  ReadUntil("kv       waiting      soft");
}

TEST_F(TerminalTest, ATerminalThatKnowsNoEscapeSequencesShouldGetNone) {
  StartBaton({"service", "list", "--watch=0.1"}, "dumb");
  EXPECT_THAT(ReadUntil("\r\n\r\nSERVICE"), Not(HasSubstr("\x1b")));  // blocks
  kill(pid_, SIGINT);
  EXPECT_EQ(WaitEnd(), 0);
}

TEST_F(TerminalTest, ErrorsShouldBeWrappedBetweenWords) {
  StartBaton({"--socket", state_dir_ + "/nowhere.sock", "--timeout", "0.1", "status"});
  const std::string text = ReadUntil("choose another\r\n");
  EXPECT_THAT(text, StartsWith("\x1b[31merror: \x1b[0mcannot reach batond"));
  EXPECT_THAT(text, HasSubstr("`batond --dev`"));
}

// One line that is written anew, and taken away at the end.
TEST_F(TerminalTest, UpgradeShouldSayWhatItWaitsForAndWhatMayComeNext) {
  keeper_->PlanUpgrade({KvUpgrade(3, v1::UPGRADE_PHASE_WATCHING)});
  StartBaton({"upgrade", "kv", "--exec", "/bin/true"});
  EXPECT_THAT(ReadUntil("undoes it  "),
              HasSubstr("\rupgrade 3 of kv: watching, 25s left; `baton rollback kv` undoes it"));
  keeper_->SetUpgrades({KvUpgrade(3, v1::UPGRADE_PHASE_COMPLETED)});
  const std::string end = ReadUntil("next: `baton rollback kv` returns to the program before\r\n");
  EXPECT_THAT(end, HasSubstr("\r\x1b[KUpgrade:           3 of service kv"));
  EXPECT_EQ(WaitEnd(), 0);
}

TEST_F(TerminalTest, AServiceThatNobodyServesShouldGetAWorker) {
  internal::Description description = KvDescription();
  description.mutable_service()->set_worker_count(0);
  keeper_->SetDescription(description);
  StartBaton({"status"});
  ReadUntil("next: start a worker of service kv, with its socket /run/baton/kv.sock\r\n");
}

TEST_F(TerminalTest, ShardDescribeShouldFitTheScreen) {
  StartBaton({"shard", "describe", "kv", "0"});
  const std::string text = ReadUntil("lists 2 of them\r\n");
  EXPECT_LE(Count(text, "\r\n"), 23u) << text;
  EXPECT_THAT(text, Not(HasSubstr("SEQUENCE")));
}

TEST_F(TerminalTest, AListOfConnectionsThatIsLongerThanTheScreenShouldEndWithItsSum) {
  std::vector<v1::Connection> many = KvConnections();
  for (uint32_t index = 10; index < 40; ++index) {
    many.push_back(many.front());
    many.back().set_index(index);
  }
  keeper_->SetConnections(many);
  StartBaton({"connection", "list", "kv"});
  ReadUntil("33 connections: 1 draining, 32 established; --shard,");
}

TEST_F(TerminalTest, EventsShouldStandBelowTheirDay) {
  keeper_->Log(KvEvent(1, "worker_attached", "kv-old"));
  ASSERT_TRUE(harness::WaitUntil("the event", [&] {
                return Run({"events", "kv"}).out.find("kv-old") != std::string::npos;
              }).ok());
  StartBaton({"events", "kv"});
  ReadUntil("2025-01-31 UTC\r\n09:15:00.000  kv        worker_attached   kv-old\r\n");
}

TEST_F(TerminalTest, WorkerKillShouldAsk) {
  StartBaton({"worker", "kill", "kv", "1"});
  EXPECT_THAT(ReadUntil("[y/N]"),
              StartsWith("Kill worker 1 of service kv (kv-old 1.0, pid 4712)? Its shards go to"));
  Press('n');
  Press('\n');
  const int status = WaitEnd();
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == kExitUsage) << status;
  EXPECT_EQ(keeper_->CountRequests([](const auto& r) { return r.has_kill_worker(); }), 0u);
}

}  // namespace
}  // namespace baton
