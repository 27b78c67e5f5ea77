#include "worker/examples/filed/local_tree.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <optional>
#include <string>

#include "gtest/gtest.h"
#include "tests/harness/expectations.h"
#include "tests/harness/file_content.h"
#include "tests/harness/temp_directory.h"
#include "tests/worker/examples/filed/text_bytes.h"

namespace baton::filed {
namespace {

FileInfo InfoOf(uint64_t size, int64_t mtime_ns) {
  FileInfo info = {};
  info.size = size;
  info.mtime_ns = mtime_ns;
  info.type = static_cast<uint8_t>(FileType::kFile);
  return info;
}

// "here" is written to; "outside" lies beside it.
class LocalTreeTest : public testing::Test {
 protected:
  void SetUp() override {
    std::ofstream(Path("outside")) << "mine";
    ASSERT_OK_AND_ASSIGN(tree_, LocalTree::Open(Path("here")));
  }

  std::string Path(const std::string& name) const { return directory_->File(name); }
  // Writes a whole file.
  absl::Status Put(const std::string& path, const std::string& text, const FileInfo& info) {
    absl::StatusOr<LocalTree::Part> part = tree_->OpenPart(path, info, /*resume=*/false);
    if (!part.ok()) return part.status();
    if (auto status = WriteAt(part->fd.get(), 0, BytesOf(text), path); !status.ok()) return status;
    return tree_->Finish(path, info, part->fd);
  }

  const absl::StatusOr<harness::TempDirectory> directory_ = harness::TempDirectory::Create();
  std::optional<LocalTree> tree_;
};

TEST_F(LocalTreeTest, shouldGiveAFileItsNameAndTimeWhenItIsComplete) {
  const FileInfo info = InfoOf(5, 1'700'000'000'123'456'789);
  ASSERT_OK(tree_->MakeDirectory("sub"));
  ASSERT_OK(tree_->MakeDirectory("sub"));  // it is there
  {
    const auto part = tree_->OpenPart("sub/a", info, /*resume=*/false);
    ASSERT_OK(part);
    EXPECT_FALSE(std::filesystem::exists(Path("here/sub/a")));
    EXPECT_FALSE(tree_->Has("sub/a", info));
  }
  ASSERT_OK(Put("sub/a", "12345", info));
  EXPECT_EQ(harness::ReadFile(Path("here/sub/a")), "12345");
  EXPECT_TRUE(tree_->Has("sub/a", info));
  EXPECT_FALSE(tree_->Has("sub/a", InfoOf(5, info.mtime_ns + 1)));
  EXPECT_FALSE(tree_->Has("sub/a", InfoOf(6, info.mtime_ns)));
  ASSERT_OK(tree_->OpenFile("sub/a"));
  // Nothing else is there.
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(Path("here/sub")), {}), 1);
  // Times before 1970, too.
  ASSERT_OK(Put("old", "1", InfoOf(1, -1)));
  EXPECT_TRUE(tree_->Has("old", InfoOf(1, -1)));
}

// A server may say so. Some file systems keep such a time.
TEST_F(LocalTreeTest, shouldTakeTheFirstTimeOfAll) {
  Put("first", "1", InfoOf(1, std::numeric_limits<int64_t>::min())).IgnoreError();
  EXPECT_FALSE(tree_->Has("first", InfoOf(1, 0)));
}

TEST_F(LocalTreeTest, shouldGoOnWithAPartOfTheSameVersionOnly) {
  const FileInfo info = InfoOf(10, 1000);
  {
    const auto part = tree_->OpenPart("a", info, /*resume=*/false);
    ASSERT_OK(part);
    ASSERT_OK(WriteAt(part->fd.get(), 0, BytesOf("1234"), "a"));
  }
  const auto again = tree_->OpenPart("a", info, /*resume=*/true);
  ASSERT_OK(again);
  EXPECT_EQ(again->length, 4u);
  for (const FileInfo& other : {InfoOf(11, 1000), InfoOf(10, 1001)}) {
    const auto part = tree_->OpenPart("a", other, /*resume=*/true);
    ASSERT_OK(part);
    EXPECT_EQ(part->length, 0u);
  }
  const auto anew = tree_->OpenPart("a", info, /*resume=*/false);
  ASSERT_OK(anew);
  EXPECT_EQ(anew->length, 0u);
}

TEST_F(LocalTreeTest, shouldWriteNothingOutside) {
  for (const char* const path :
       {"../outside", "..", "/tmp/x", "a/../../outside", "", ".", "a//b"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(Put(path, "x", InfoOf(1, 1)))) << path;
  }
  EXPECT_TRUE(absl::IsInvalidArgument(tree_->MakeDirectory("../x")));
  // Links that others have put there.
  std::filesystem::create_symlink("..", Path("here/up"));
  std::filesystem::create_symlink(Path("outside"), Path("here/link"));
  EXPECT_FALSE(Put("up/outside", "x", InfoOf(1, 1)).ok());
  EXPECT_FALSE(tree_->MakeDirectory("up").ok());
  EXPECT_FALSE(tree_->OpenFile("link").ok());
  ASSERT_OK(Put("link", "x", InfoOf(1, 1)));  // takes the link's place
  EXPECT_FALSE(std::filesystem::is_symlink(Path("here/link")));
  EXPECT_EQ(harness::ReadFile(Path("outside")), "mine");
}

TEST_F(LocalTreeTest, shouldWriteToNoPartThatIsAnotherFileToo) {
  const std::string part = Path("here/a.1-1.baton-part");
  std::filesystem::create_symlink(Path("outside"), part);
  EXPECT_FALSE(tree_->OpenPart("a", InfoOf(1, 1), /*resume=*/true).ok());
  ASSERT_EQ(unlink(part.c_str()), 0);
  std::filesystem::create_hard_link(Path("outside"), part);
  EXPECT_TRUE(
      absl::IsFailedPrecondition(tree_->OpenPart("a", InfoOf(1, 1), /*resume=*/true).status()));
  EXPECT_EQ(harness::ReadFile(Path("outside")), "mine");
}

TEST_F(LocalTreeTest, shouldSayWhatIsInTheWay) {
  ASSERT_OK(Put("file", "x", InfoOf(1, 1)));
  EXPECT_TRUE(absl::IsFailedPrecondition(tree_->MakeDirectory("file")));
  ASSERT_OK(tree_->MakeDirectory("directory"));
  EXPECT_FALSE(Put("directory", "x", InfoOf(1, 1)).ok());
  EXPECT_FALSE(LocalTree::Open(Path("none/here")).ok());
}

}  // namespace
}  // namespace baton::filed
