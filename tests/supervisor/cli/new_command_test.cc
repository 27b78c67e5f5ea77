// `baton new service`: new_service_test builds what it writes.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "supervisor/cli/cli.h"
#include "tests/harness/file_content.h"
#include "tests/harness/temp_directory.h"

namespace baton {
namespace {

class NewServiceTest : public testing::Test {
 protected:
  // Returns the exit code.
  int Run(const std::string& name, const std::string& directory) {
    std::istringstream in;
    std::ostringstream out, err;
    const int code = RunCli({"new", "service", name, "--directory", directory},
                            Console{.in = in, .out = out, .err = err});
    out_ = out.str();
    err_ = err.str();
    return code;
  }
  std::string File(const std::string& name) const { return directory_.File(name); }

  const harness::TempDirectory directory_ = harness::TempDirectory::Create().value();
  std::string out_, err_;
};

TEST_F(NewServiceTest, shouldWriteFilesOfThatName) {
  ASSERT_EQ(Run("quote-feed", File("quotes")), 0) << err_;
  EXPECT_EQ(out_, absl::StrCat(File("quotes/CMakeLists.txt"), "\n", File("quotes/quote-feed.cpp"),
                               "\n", File("quotes/quote-feed_test.cpp"), "\n"));
  EXPECT_NE(
      harness::ReadFile(File("quotes/quote-feed.cpp")).find("options.service = \"quote-feed\";"),
      std::string::npos);
  for (const auto& file : std::filesystem::directory_iterator(File("quotes"))) {
    EXPECT_EQ(harness::ReadFile(file.path()).find("@NAME@"), std::string::npos) << file.path();
  }
}

TEST_F(NewServiceTest, shouldWriteNothingOverFilesThatAreThere) {
  std::ofstream(File("mine")) << "mine";
  EXPECT_NE(Run("kv", directory_.path()), 0);
  EXPECT_NE(err_.find(absl::StrCat(directory_.path(), " is not empty")), std::string::npos) << err_;
  EXPECT_NE(Run("kv", File("mine")), 0);
  EXPECT_FALSE(std::filesystem::exists(File("kv.cpp")));
  EXPECT_EQ(harness::ReadFile(File("mine")), "mine");
}

TEST_F(NewServiceTest, shouldRefuseNamesThatNoServiceOrTargetCanHave) {
  for (const std::string& name :
       {std::string("Kv"), std::string("1kv"), std::string("k v"), std::string("../kv"),
        std::string("-kv"), std::string("k_v"), std::string("control"), std::string("test"),
        std::string(33, 'k')}) {
    EXPECT_NE(Run(name, File("new")), 0) << name;
    EXPECT_FALSE(std::filesystem::exists(File("new"))) << name;
  }
  EXPECT_EQ(Run(std::string(32, 'k'), File("new")), 0) << err_;
}

}  // namespace
}  // namespace baton
