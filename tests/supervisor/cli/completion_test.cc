// What can stand at the end of a command line, by itself and as the three shells offer it.
#include "supervisor/cli/completion.h"

#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "supervisor/cli/command_line.h"
#include "tests/harness/binaries.h"
#include "tests/supervisor/cli/cli_fixture.h"
#include "tests/supervisor/cli/run_program.h"

namespace baton {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class FakeNames final : public LiveNames {
 public:
  void UseOptions(const std::map<std::string, std::string>& options) override { typed = options; }
  std::vector<Candidate> Services() override { return services; }
  std::vector<Candidate> Workers(const std::string& service) override {
    return {{"1", "of " + service}, {"12", ""}};
  }
  std::vector<Candidate> Shards(const std::string& service) override {
    return {{"0", "of " + service}};
  }
  std::vector<Candidate> Connections(const std::string& service) override {
    return {{"5", "of " + service}};
  }

  std::map<std::string, std::string> typed;
  std::vector<Candidate> services = {{"kv", "ok"}, {"nvme", "waiting"}};
};

class CompletionTest : public testing::Test {
 protected:
  std::vector<std::string> Words(const std::vector<std::string>& typed) {
    std::vector<std::string> words;
    last_ = Complete(*app_, typed, &names_);
    for (const Candidate& one : last_.candidates) words.push_back(one.word);
    return words;
  }

  FakeNames names_;
  Completion last_;
  std::istringstream in_;
  std::ostringstream out_, err_;
  const Console console_{.in = in_, .out = out_, .err = err_};
  Invocation invocation_{.console = console_};
  const std::unique_ptr<CLI::App> app_ = MakeCommandLine(&invocation_);
};

TEST_F(CompletionTest, ShouldOfferCommands) {
  EXPECT_THAT(Words({"s"}), ElementsAre("status", "service", "shard", "snapshot"));
  EXPECT_THAT(Words({"worker", ""}), ElementsAre("list", "describe", "stop", "kill"));
  EXPECT_EQ(last_.candidates[3].description, "Kill a worker's process with SIGKILL");
  EXPECT_THAT(Words({"worker", "x"}), IsEmpty());
}

TEST_F(CompletionTest, ShouldOfferWhatIsThere) {
  EXPECT_THAT(Words({"service", "describe", ""}), ElementsAre("kv", "nvme"));
  EXPECT_THAT(Words({"handoff", "n"}), ElementsAre("nvme"));
  EXPECT_THAT(Words({"worker", "stop", "kv", "1"}), ElementsAre("1", "12"));
  EXPECT_EQ(last_.candidates[0].description, "of kv");
  EXPECT_THAT(Words({"shard", "describe", "kv", ""}), ElementsAre("0"));
  EXPECT_THAT(Words({"connection", "describe", "nvme", ""}), ElementsAre("5"));
  EXPECT_EQ(last_.candidates[0].description, "of nvme");
}

TEST_F(CompletionTest, ShouldOfferWhatMayStandWhereTheOnlyServiceIsLeftOut) {
  EXPECT_THAT(Words({"shard", "describe", ""}), ElementsAre("kv", "nvme"));
  names_.services = {{"kv", "ok"}};
  EXPECT_THAT(Words({"shard", "describe", ""}), ElementsAre("kv", "0"));
  EXPECT_THAT(Words({"worker", "stop", ""}), ElementsAre("kv", "1", "12"));
  EXPECT_THAT(Words({"handoff", "--shard", ""}), ElementsAre("0"));
  EXPECT_EQ(last_.candidates[0].description, "of kv");
}

TEST_F(CompletionTest, ShouldOfferOptionsAndTheirValues) {
  EXPECT_THAT(Words({"worker", "stop", "kv", "1", "--w"}), ElementsAre("--wait-timeout"));
  EXPECT_THAT(Words({"worker", "stop", "kv", "1", "--"}), Contains("--state-dir"));
  EXPECT_THAT(Words({"worker", "stop", "--yes", "--"}), Not(Contains("--yes")));
  EXPECT_THAT(Words({"handoff", "kv", "--shard", "0", "--s"}), Contains("--shard"));  // again
  EXPECT_THAT(Words({"status", "-o", ""}), ElementsAre("table", "wide", "json"));
  EXPECT_THAT(Words({"-o", "json", "status", "--output=w"}), ElementsAre("--output=wide"));
  EXPECT_THAT(Words({"handoff", "kv", "--to", ""}), ElementsAre("1", "12"));
  EXPECT_THAT(Words({"service", "list", "--service=k"}), ElementsAre("--service=kv"));
  EXPECT_THAT(Words({"worker", "list", "--state", "r"}), ElementsAre("ready"));
  EXPECT_THAT(Words({"completion", ""}), ElementsAre("bash", "zsh", "fish"));
}

TEST_F(CompletionTest, ShouldLeaveFilesToTheShell) {
  EXPECT_THAT(Words({"upgrade", "kv", "--exec", ""}), IsEmpty());
  EXPECT_TRUE(last_.files);
  Words({"upgrade", "kv", "--exec", "/x", "--", "--socket", ""});
  EXPECT_TRUE(last_.files);
  Words({"status", ""});
  EXPECT_FALSE(last_.files);
}

TEST_F(CompletionTest, ShouldAskTheControlThatIsTyped) {
  Words({"--socket", "/s", "--state-dir=/d", "handoff", ""});
  EXPECT_EQ(names_.typed["--socket"], "/s");
  EXPECT_EQ(names_.typed["--state-dir"], "/d");
}

// ---------------------------------------------------------------- in real shells

class ShellTest : public CliFixture {
 protected:
  void SetUp() override {
    CliFixture::SetUp();
    baton_ = *harness::Binaries().Find("baton");
    for (const std::string& shell : kShells) {
      std::ofstream(Script(shell)) << RunBare({"completion", shell}).out;
    }
  }

  std::string Script(const std::string& shell) const { return state_dir_ + "/completion." + shell; }

  // `script`, with baton on the PATH and a control to ask.
  std::string RunIn(const std::string& shell, const std::string& script) {
    const std::string file = state_dir_ + "/script";
    std::ofstream(file) << script;
    const std::string directory = baton_.substr(0, baton_.rfind('/'));
    const ProgramResult result = RunProgram(absl::StrCat("HOME=", state_dir_, " PATH=", directory,
                                                         ":$PATH BATON_SOCKET=", state_dir_,
                                                         "/operator.sock ", shell, " ", file));
    EXPECT_EQ(result.code, 0) << shell << (result.code == 127 ? kInstall : "") << "\n"
                              << result.text;
    return result.text;
  }

  // What bash offers for these words.
  std::string InBash(const std::vector<std::string>& words) {
    return RunIn(
        "bash --norc",
        absl::StrCat("source ", Script("bash"), "\nCOMP_WORDS=('", absl::StrJoin(words, "' '"),
                     "')\nCOMP_CWORD=", words.size() - 1, "\n_baton\necho \"${COMPREPLY[*]}\"\n"));
  }

  std::string InFish(const std::string& line) {
    return RunIn("fish --no-config",
                 absl::StrCat("source ", Script("fish"), "\ncomplete -C '", line, "'\n"));
  }

  // What is given to _describe, which needs a terminal.
  std::string InZsh(const std::vector<std::string>& words) {
    return RunIn("zsh -f", absl::StrCat("compdef() { }\n_describe() { print -l -- ${(P)3} }\n"
                                        "_files() { print files }\nsource ",
                                        Script("zsh"), "\nwords=('", absl::StrJoin(words, "' '"),
                                        "')\nCURRENT=", words.size(), "\n_baton\n"));
  }

  std::string baton_;
};

TEST_F(ShellTest, ShouldCompleteInBash) {
  EXPECT_EQ(InBash({"baton", "wor"}), "worker\n");
  EXPECT_EQ(InBash({"baton", "service", "describe", ""}), "kv nvme\n");
  EXPECT_EQ(InBash({"baton", "worker", "stop", "kv", ""}), "1 2\n");
  EXPECT_EQ(InBash({"baton", "shard", "describe", "kv", ""}), "0 1\n");
  EXPECT_EQ(InBash({"baton", "connection", "describe", "kv", ""}), "0 1 5\n");
  // Readline takes `--output=j` apart into these words.
  EXPECT_EQ(InBash({"baton", "status", "--output", "=", "j"}), "json\n");
  EXPECT_EQ(InBash({"baton", "upgrade", "kv", "--exec", ""}), "\n");
}

TEST_F(ShellTest, ShouldCompleteInFish) {
  EXPECT_EQ(RunProgram("fish --no-execute " + Script("fish")).code, 0) << kInstall;
  EXPECT_EQ(InFish("baton wor"), "worker\tWorkers: processes attached to a service\n");
  EXPECT_EQ(InFish("baton service describe "), "kv\twaiting\nnvme\tunreachable\n");
  EXPECT_THAT(InFish("baton worker stop kv "), HasSubstr("1\tkv-old 1.0, ready\n"));
  EXPECT_EQ(InFish("baton status --output=j"), "--output=json\n");
}

TEST_F(ShellTest, ShouldCompleteInZsh) {
  EXPECT_EQ(RunProgram("zsh -n " + Script("zsh")).code, 0) << kInstall;
  EXPECT_EQ(InZsh({"baton", "wor"}), "worker:Workers: processes attached to a service\n");
  EXPECT_EQ(InZsh({"baton", "service", "describe", ""}), "kv:waiting\nnvme:unreachable\n");
  EXPECT_EQ(InZsh({"baton", "status", "--output=j"}), "--output=json\n");
  EXPECT_EQ(InZsh({"baton", "upgrade", "kv", "--exec", ""}), "files\n");
}

TEST_F(ShellTest, ShouldSayNothingWhereNobodyAnswers) {
  control_.reset();
  EXPECT_EQ(InBash({"baton", "service", "describe", ""}), "\n");
  EXPECT_EQ(InBash({"baton", "service", "des"}), "describe\n");
}

}  // namespace
}  // namespace baton
