// The manual pages: two formatters find nothing wrong with them, and they have every option.
#include "supervisor/cli/man_page.h"

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "supervisor/cli/command_line.h"
#include "supervisor/cli/description.h"
#include "tests/supervisor/cli/run_program.h"

namespace baton {
namespace {

using ::testing::HasSubstr;

constexpr char kDirectory[] = "supervisor/cli/man_pages";  // that Bazel has made

std::set<std::string> Files() {
  std::set<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(kDirectory)) {
    files.insert(entry.path().filename());
  }
  return files;
}

class ManPageTest : public testing::Test {
 protected:
  std::istringstream in_;
  std::ostringstream out_, err_;
  const Console console_{.in = in_, .out = out_, .err = err_};
  Invocation invocation_{.console = console_};
  const std::unique_ptr<CLI::App> app_ = MakeCommandLine(&invocation_);
};

TEST_F(ManPageTest, ShouldBeOneForEachCommand) {
  std::set<std::string> wanted = {"baton.1"};
  for (const CLI::App* one : SubcommandsOf(*app_)) {
    wanted.insert(absl::StrCat("baton-", one->get_name(), ".1"));
  }
  EXPECT_EQ(Files(), wanted);
}

TEST_F(ManPageTest, ShouldPleaseTheFormatters) {
  for (const std::string& file : Files()) {
    const std::string path = absl::StrCat(kDirectory, "/", file);
    const ProgramResult lint = RunProgram("mandoc -T lint -W warning " + path);
    EXPECT_EQ(lint.code, 0) << lint.text << (lint.code == 127 ? kInstall : "");
    const ProgramResult groff = RunProgram("groff -man -ww -Tutf8 -z " + path);
    EXPECT_EQ(groff.code, 0) << groff.text << (groff.code == 127 ? kInstall : "");
    EXPECT_EQ(groff.text, "") << file;
  }
}

// Returns the page as its reader sees it, whatever macros made it.
std::string Rendered(const std::string& file) {
  const ProgramResult result =
      RunProgram(absl::StrCat("groff -man -Tascii -P-cbou -rLL=500n ", kDirectory, "/", file));
  EXPECT_EQ(result.code, 0) << result.text;
  return result.text;
}

void ExpectOptions(const CLI::App& command, const std::string& page) {
  for (const CLI::Option* option : OptionsOf(command)) {
    EXPECT_THAT(page, HasSubstr(LabelOf(*option))) << PathOf(command);
  }
  for (const CLI::Option* positional : PositionalsOf(command)) {
    EXPECT_THAT(page, HasSubstr(NameOf(*positional))) << PathOf(command);
  }
  for (const CLI::App* one : SubcommandsOf(command)) {
    EXPECT_THAT(page, HasSubstr(UsageOf(*one)));
    ExpectOptions(*one, page);
  }
}

TEST_F(ManPageTest, ShouldHaveEveryOption) {
  const std::string overview = Rendered("baton.1");
  for (const CLI::Option* option : OptionsOf(*app_)) {
    EXPECT_THAT(overview, HasSubstr(LabelOf(*option)));
  }
  for (const CLI::App* one : SubcommandsOf(*app_)) {
    EXPECT_THAT(overview, HasSubstr(PathOf(*one)));
    ExpectOptions(*one, Rendered(absl::StrCat("baton-", one->get_name(), ".1")));
  }
}

TEST_F(ManPageTest, ShouldTellTheExitCodes) {
  for (const std::string& file : Files()) {
    const std::string page = Rendered(file);
    EXPECT_THAT(page, HasSubstr("EXIT STATUS")) << file;
    EXPECT_THAT(page, HasSubstr("There was no answer in time.")) << file;
  }
}

}  // namespace
}  // namespace baton
