// What every command prints, as tests/supervisor/cli/golden.txt has it: as a table, wide, as
// JSON, and when it fails. After a change that is meant, write it anew, and read the difference:
//
//   BATON_UPDATE_GOLDEN=1 bazel run --config=run //tests/supervisor/cli:golden_test && git diff
#include <sys/stat.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "gtest/gtest.h"
#include "supervisor/cli/command_line.h"
#include "supervisor/cli/description.h"
#include "supervisor/doctor/machine.h"
#include "tests/supervisor/cli/cli_fixture.h"
#include "tests/supervisor/cli/golden_cases.h"

namespace baton {
namespace {

constexpr char kGolden[] = "tests/supervisor/cli/golden.txt";
constexpr std::string_view kHead = "==== ";  // before the name of a section, on a line of its own

using Sections = std::map<std::string, std::string>;

Sections ReadSections(const std::string& path) {
  Sections sections;
  std::string* section = nullptr;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(kHead)) {
      section = &sections[line.substr(kHead.size())];
    } else if (section != nullptr) {
      absl::StrAppend(section, line, "\n");
    }
  }
  return sections;
}

void WriteSections(const std::string& path, const Sections& sections) {
  std::ofstream file(path);
  for (const auto& [name, text] : sections) file << kHead << name << "\n" << text;
}

// "diff -u" of the two.
std::string Difference(const std::string& golden, const std::string& actual) {
  const char* const temporary = std::getenv("TEST_TMPDIR");
  const std::string stem = absl::StrCat(temporary == nullptr ? "/tmp" : temporary, "/", getpid());
  const std::string then = stem + "-golden", now = stem + "-now";
  std::ofstream(then) << golden;
  std::ofstream(now) << actual;
  std::string text;
  FILE* const diff =
      popen(absl::StrCat("diff -u --label golden ", then, " --label now ", now).c_str(), "r");
  char part[4096];
  while (const size_t size = fread(part, 1, sizeof(part), diff)) text.append(part, size);
  pclose(diff);
  std::filesystem::remove(then);
  std::filesystem::remove(now);
  return text;
}

class GoldenTest : public CliFixture, public testing::WithParamInterface<GoldenSection> {
 protected:
  void SetUp() override {
    CliFixture::SetUp();
    std::ofstream(state_dir_ + "/kv-1.1") << "#!/bin/sh\n";
    ASSERT_EQ(chmod((state_dir_ + "/kv-1.1").c_str(), 0755), 0);
  }

  std::string RunCase(const GoldenCase& one) {
    GoldenScene scene{.keeper = *keeper_,
                      .machine = machine_,
                      .log = [this](const v1::Event& event) { LogAndAwait(event); },
                      .run = [this](const std::vector<std::string>& words) { (void)Run(words); },
                      .batond = batond_,
                      .stop_control = [this] { control_.reset(); },
                      .end_worker_when_asked = [this] { EndWorkerWhenAsked(); }};
    if (one.before) one.before(scene);
    std::vector<std::string> arguments;
    for (const std::string& word : one.arguments) {
      arguments.push_back(absl::StrReplaceAll(word, {{"STATE", state_dir_}}));
    }
    const std::vector<std::string> typed = arguments;
    const bool doctor = !arguments.empty() && arguments[0] == "doctor";
    arguments.insert(arguments.begin(), {"--state-dir", doctor ? "/run/baton" : state_dir_});
    std::istringstream in(one.typed);
    std::ostringstream out, err;
    const int code = RunCli(arguments, Console{.in = in,
                                               .out = out,
                                               .err = err,
                                               .interactive = !one.typed.empty(),
                                               .patience_seconds = 1e6,
                                               .machine = &machine_,
                                               .identity = &identity_});
    std::string text = absl::StrCat("$ baton ", absl::StrJoin(typed, " "),
                                    one.typed.empty() ? "" : "  # typed: ", one.typed);
    if (one.typed.empty()) text += '\n';
    absl::StrAppend(&text, "exit code ", code, "\n", Part("output", out.str()),
                    Part("messages", err.str()), "\n");
    return AsAlways(text);
  }

 private:
  static std::string Part(const std::string& name, const std::string& text) {
    if (text.empty()) return "";
    return absl::StrCat("--- ", name, "\n", text, text.ends_with("\n") ? "" : "\n");
  }

  // What is another every time, and no part of what is compared.
  std::string AsAlways(const std::string& text) const {
    std::string same = absl::StrReplaceAll(text, {{state_dir_, "STATE"}});
    for (const auto& [pattern, replacement] : std::vector<std::pair<const char*, const char*>>{
             {"(Control: +pid )[0-9]+, up [^ \n]+", "$1PID, up TIME"},
             {"(control pid )[0-9]+, up [^ ;\n]+", "$1PID, up TIME"},
             {"(\"control_pid\": )[0-9]+", "$1PID"},
             // Of what was recorded just now; what tests have made up is older.
             {"20(2[6-9]|[3-9][0-9])-[-0-9]+T[0-9:.]+Z", "TIME"},
             {"(unix_micros\": ?\")(17[6-9]|1[89])[0-9]+", "$1TIME"},
             {"uid [0-9]+ pid [0-9]+  +", "uid UID pid PID  "},
             {"uid [0-9]+ pid [0-9]+", "uid UID pid PID"},
             {"(\"control_uptime_seconds\": )[-+.0-9e]+", "$1TIME"}}) {
      same = std::regex_replace(same, std::regex(pattern), replacement);
    }
    return same;
  }

  void LogAndAwait(const v1::Event& event) {
    keeper_->Log(event);
    ASSERT_TRUE(harness::WaitUntil(event.kind(), [&] {
                  return Run({"events", "kv"}).out.find(event.kind()) != std::string::npos;
                }).ok());
  }

  void EndWorkerWhenAsked() {
    stream_ = OpenStream(1);
    on_shutdown_ = [this] {
      internal::Description without = KvDescription();
      without.mutable_workers()->DeleteSubrange(0, 1);
      keeper_->SetDescription(without);
    };
  }

  doctor::FakeMachine machine_;
  const doctor::Identity identity_{"baton", 1000, 1000, {doctor::kRdmaGroup}, true};
  std::unique_ptr<ControlStream> stream_;
};

TEST_P(GoldenTest, ShouldPrintWhatIsRecorded) {
  std::string actual;
  for (const GoldenCase& one : GetParam().cases) actual += RunCase(one);
  const std::string& name = GetParam().name;
  if (std::getenv("BATON_UPDATE_GOLDEN") != nullptr) {
    const char* const tree = std::getenv("BUILD_WORKSPACE_DIRECTORY");
    ASSERT_NE(tree, nullptr) << "use bazel run, see the head of this test";
    const std::string path = absl::StrCat(tree, "/", kGolden);
    Sections sections = ReadSections(path);
    sections[name] = actual;
    WriteSections(path, sections);
    return;
  }
  const std::string golden = ReadSections(kGolden)[name];
  if (golden == actual) return;
  FAIL() << kGolden << " has something else of " << name
         << " (- golden, + now; the head of this test says how to write it anew):\n"
         << Difference(golden, actual);
}

INSTANTIATE_TEST_SUITE_P(All, GoldenTest, testing::ValuesIn(GoldenSections()),
                         [](const auto& info) { return info.param.name; });

// ---------------------------------------------------------------- every command

class EveryCommandTest : public testing::Test {
 protected:
  std::vector<const CLI::App*> All(const CLI::App* from) {
    std::vector<const CLI::App*> all = {from};
    for (const CLI::App* one : SubcommandsOf(*from)) {
      for (const CLI::App* below : All(one)) all.push_back(below);
    }
    return all;
  }

  std::istringstream in_;
  std::ostringstream out_, err_;
  const Console console_{.in = in_, .out = out_, .err = err_};
  Session session_{.console = console_};
  const std::unique_ptr<CLI::App> app_ = MakeCommandLine(&session_);
};

TEST_F(EveryCommandTest, ShouldHaveAHelpThatFitsAScreen) {
  for (const CLI::App* command : All(app_.get())) {
    std::vector<std::string> words = absl::StrSplit(PathOf(*command), ' ');
    words.erase(words.begin());
    words.emplace_back("--help");
    std::istringstream in;
    std::ostringstream out, err;
    EXPECT_EQ(RunCli(words, Console{.in = in, .out = out, .err = err}), kExitOk)
        << PathOf(*command);
    std::vector<std::string> lines = absl::StrSplit(out.str(), '\n');
    EXPECT_EQ(lines.back(), "");
    lines.pop_back();
    EXPECT_LE(lines.size(), 23u) << out.str();  // a prompt follows
    for (const std::string& line : lines) EXPECT_LE(line.size(), 80u) << out.str();
    for (const CLI::Option* option : OptionsOf(*command)) {
      if (option->get_group() == kOverTls) continue;
      EXPECT_NE(out.str().find(LabelOf(*option)), std::string::npos) << LabelOf(*option);
    }
  }
}

// They look into arenas, and not at what control says: inspect_test.cc has what they print.
const std::set<std::string> kOfArenas = {"baton inspect", "baton snapshot"};

// What golden.txt has of one command.
struct Recorded {
  bool table = false;
  bool wide = false;
  bool json = false;
  bool error = false;
};

TEST_F(EveryCommandTest, ShouldBeGoldenAsATableWideAsJsonAndWhenItFails) {
  std::map<std::string, Recorded> recorded;
  for (const auto& [name, text] : ReadSections(kGolden)) {
    const std::regex run("\\$ (baton[^\n#]*)[^\n]*\nexit code ([0-9])");
    for (std::sregex_iterator one(text.begin(), text.end(), run), end; one != end; ++one) {
      std::string words = (*one)[1];
      const bool json = words.find(" -o json") != std::string::npos;
      const bool wide = words.find(" -o wide") != std::string::npos;
      for (const CLI::App* command : All(app_.get())) {
        const std::string path = PathOf(*command);
        if (!absl::StrCat(words, " ").starts_with(path + " ")) continue;
        Recorded& of = recorded[path];
        const bool failed = (*one)[2] != "0";
        of.error |= failed;
        of.json |= json && !failed;
        of.wide |= wide && !failed;
        of.table |= !json && !wide && !failed;
      }
    }
  }
  for (const CLI::App* command : All(app_.get())) {
    if (!SubcommandsOf(*command).empty()) continue;
    const std::string path = PathOf(*command);
    if (kOfArenas.count(path) > 0) continue;
    const Recorded& of = recorded[path];
    EXPECT_TRUE(of.table) << path;
    EXPECT_TRUE(of.error) << path;
    // Scripts are scripts.
    EXPECT_TRUE(of.json || path == "baton completion") << path;
    const bool lists = command->get_option_no_throw("--no-headers") != nullptr;
    EXPECT_TRUE(of.wide || !lists) << path;
  }
}

// Of what the design promises for all: what looks can watch, what changes can be tried dry.
TEST_F(EveryCommandTest, ShouldHaveTheOptionsOfItsKind) {
  const std::set<std::string> changes = {"stop",  "kill",  "handoff", "upgrade", "rollback",
                                         "drain", "pause", "resume",  "reload"};
  for (const CLI::App* command : All(app_.get())) {
    const std::string name = command->get_name();
    const auto has = [&](const char* option) {
      return command->get_option_no_throw(option) != nullptr;
    };
    if (name == "list" || name == "status" || name == "history") {
      EXPECT_TRUE(has("--watch") && has("--no-headers")) << PathOf(*command);
    }
    if (name == "describe") {
      EXPECT_TRUE(has("--watch")) << PathOf(*command);
    }
    if (changes.count(name) > 0) {
      EXPECT_TRUE(has("--dry-run") && has("--yes")) << PathOf(*command);
    }
  }
}

}  // namespace
}  // namespace baton
