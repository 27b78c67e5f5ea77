#include "worker/examples/filed/served_directory.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/harness/expectations.h"
#include "tests/harness/temp_directory.h"

namespace baton::filed {
namespace {

using testing::ElementsAre;

// "served" is served; "outside" lies beside it.
class ServedDirectoryTest : public testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directories(Path("served/sub"));
    Write("served/a", "12345");
    Write("served/sub/b", "");
    Write("outside", "secret");
    ASSERT_OK_AND_ASSIGN(served_, ServedDirectory::Open(Path("served")));
  }

  std::string Path(const std::string& name) const { return directory_->File(name); }
  void Write(const std::string& name, const std::string& text) const {
    std::ofstream(Path(name)) << text;
  }
  void Link(const std::string& to, const std::string& name) const {
    std::filesystem::create_symlink(to, Path(name));
  }
  std::vector<std::string> NamesOf(const std::string& path, const std::string& after = "",
                                   size_t most_bytes = kMaxListBytes) const {
    std::vector<std::string> names;
    const auto page = served_->List(path, after, most_bytes);
    EXPECT_OK(page);
    if (!page.ok()) return names;
    for (const NamedEntry& entry : page->entries) names.push_back(entry.name);
    return names;
  }

  const absl::StatusOr<harness::TempDirectory> directory_ = harness::TempDirectory::Create();
  std::optional<ServedDirectory> served_;
};

TEST_F(ServedDirectoryTest, shouldShowFilesAndDirectories) {
  EXPECT_THAT(NamesOf(""), ElementsAre("a", "sub"));
  EXPECT_THAT(NamesOf("sub"), ElementsAre("b"));
  const auto page = served_->List("", "", kMaxListBytes);
  ASSERT_OK(page);
  EXPECT_FALSE(page->more);
  EXPECT_EQ(page->entries[0].info.type, static_cast<uint8_t>(FileType::kFile));
  EXPECT_EQ(page->entries[0].info.size, 5u);
  EXPECT_EQ(page->entries[1].info.type, static_cast<uint8_t>(FileType::kDirectory));
  EXPECT_EQ(page->entries[1].info.size, 0u);
  const auto info = served_->Stat("a");
  ASSERT_OK(info);
  EXPECT_EQ(info->mtime_ns, page->entries[0].info.mtime_ns);
  ASSERT_OK(served_->Stat(""));
  const auto file = served_->OpenFile("a");
  ASSERT_OK(file);
  char bytes[8] = {};
  EXPECT_EQ(read(file->fd.get(), bytes, sizeof(bytes)), 5);
  EXPECT_STREQ(bytes, "12345");
}

// 64 bits of nanoseconds end in 2262.
TEST_F(ServedDirectoryTest, shouldShowAFileOfAFarTime) {
  const timespec far = {20'000'000'000, 5};
  const timespec times[2] = {far, far};
  ASSERT_EQ(utimensat(AT_FDCWD, Path("served/a").c_str(), times, 0), 0);
  const auto first = served_->Stat("a"), again = served_->Stat("a");
  ASSERT_OK(first);
  ASSERT_OK(again);
  EXPECT_EQ(first->mtime_ns, again->mtime_ns);
}

TEST_F(ServedDirectoryTest, shouldShowEachEntryOnceInPagesOfAnySize) {
  std::vector<std::string> names = {"a", "sub"};
  for (int i = 0; i < 100; ++i) {
    names.push_back("n" + std::to_string(i * 7919 % 1000));
    Write("served/" + names.back(), "");
  }
  std::sort(names.begin(), names.end());
  for (const size_t bytes : {size_t{1}, size_t{100}, size_t{1000}, size_t{kMaxListBytes}}) {
    std::vector<std::string> seen;
    for (bool more = true; more;) {
      const auto page = served_->List("", seen.empty() ? "" : seen.back(), bytes);
      ASSERT_OK(page);
      more = page->more;
      ASSERT_TRUE(!page->entries.empty() || !more);
      size_t used = 0;
      for (const NamedEntry& entry : page->entries) {
        seen.push_back(entry.name);
        used += EntryBytes(entry.name);
      }
      EXPECT_TRUE(used <= bytes || page->entries.size() == 1) << used << " of " << bytes;
    }
    EXPECT_EQ(seen, names) << bytes;
  }
  EXPECT_THAT(NamesOf("", "n999"), ElementsAre("sub"));
  EXPECT_THAT(NamesOf("", "zzz"), ElementsAre());
}

TEST_F(ServedDirectoryTest, shouldSayWhatIsNotThere) {
  EXPECT_TRUE(absl::IsNotFound(served_->Stat("none").status()));
  EXPECT_TRUE(absl::IsNotFound(served_->OpenFile("none/b").status()));
  EXPECT_TRUE(absl::IsNotFound(served_->OpenFile("a/b").status()));
  EXPECT_TRUE(absl::IsFailedPrecondition(served_->OpenFile("sub").status()));
  EXPECT_TRUE(absl::IsFailedPrecondition(served_->List("a", "", kMaxListBytes).status()));
}

TEST_F(ServedDirectoryTest, shouldLeadNowhereElse) {
  for (const char* const path : {"..", "../outside", "sub/../../outside", "/etc/passwd", "/",
                                 "sub/..", ".", "sub//b", "a/"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(served_->Stat(path).status())) << path;
    EXPECT_TRUE(absl::IsInvalidArgument(served_->OpenFile(path).status())) << path;
  }
  const std::string with_nul("a\0b", 3);
  EXPECT_TRUE(absl::IsInvalidArgument(served_->Stat(with_nul).status()));
}

TEST_F(ServedDirectoryTest, shouldFollowNoLink) {
  Link(Path("outside"), "served/absolute");
  Link("../outside", "served/up");
  Link("a", "served/within");
  Link("..", "served/directory");
  for (const char* const path : {"absolute", "up", "within", "directory", "directory/outside"}) {
    EXPECT_TRUE(absl::IsPermissionDenied(served_->OpenFile(path).status())) << path;
    EXPECT_TRUE(absl::IsPermissionDenied(served_->Stat(path).status())) << path;
  }
  EXPECT_THAT(NamesOf(""), ElementsAre("a", "sub"));
  EXPECT_FALSE(served_->List("directory", "", kMaxListBytes).ok());
}

TEST_F(ServedDirectoryTest, shouldNeitherOpenNorShowOtherKindsOfFiles) {
  ASSERT_EQ(mkfifo(Path("served/fifo").c_str(), 0600), 0);
  EXPECT_TRUE(absl::IsPermissionDenied(served_->OpenFile("fifo").status()));
  EXPECT_THAT(NamesOf(""), ElementsAre("a", "sub"));
}

TEST_F(ServedDirectoryTest, shouldServeADirectoryThatALinkOfTheOperatorLeadsTo) {
  Link(Path("served"), "link");
  const auto served = ServedDirectory::Open(Path("link"));
  ASSERT_OK(served);
  EXPECT_OK(served->OpenFile("a"));
}

TEST_F(ServedDirectoryTest, shouldRefuseToServeWhatIsNoDirectory) {
  EXPECT_FALSE(ServedDirectory::Open(Path("served/a")).ok());
  EXPECT_TRUE(absl::IsNotFound(ServedDirectory::Open(Path("none")).status()));
}

}  // namespace
}  // namespace baton::filed
