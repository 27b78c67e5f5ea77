// Backings against a model, and what they say when the file fails them.
#include "worker/examples/nvmed/backing.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/base/file_descriptor.h"
#include "tests/harness/temp_directory.h"

namespace baton::nvmed {
namespace {

using harness::TempDirectory;
using testing::HasSubstr;

constexpr uint32_t kBlock = 512;
constexpr uint32_t kPageBytes = 4096;

class BackingTest : public testing::Test {
 protected:
  BackingTest() : directory_(TempDirectory::Create().value()) {}

  // Makes a file of `bytes` zeroes, none of which has a place on the disk.
  std::string MakeFile(uint64_t bytes) {
    std::string path = directory_.File("blocks");
    FileDescriptor file(open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    EXPECT_TRUE(file) << path;
    EXPECT_EQ(ftruncate(file.get(), static_cast<off_t>(bytes)), 0);
    return path;
  }
  std::unique_ptr<Backing> Open(const FileOptions& options) {
    auto backing = OpenFile(options);
    EXPECT_TRUE(backing.ok()) << backing.status();
    return backing.ok() ? *std::move(backing) : nullptr;
  }
  // A file of so many bytes, written by random bytes that are returned.
  std::vector<uint8_t> Scribble(Backing& backing) {
    std::vector<uint8_t> bytes(backing.bytes());
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random_());
    EXPECT_EQ(backing.Write(0, bytes, false), 0);
    return bytes;
  }
  std::vector<uint8_t> ReadAll(Backing& backing) {
    std::vector<uint8_t> bytes(backing.bytes());
    EXPECT_EQ(backing.Read(0, absl::MakeSpan(bytes)), 0);
    return bytes;
  }
  // Random operations on ranges of `unit` bytes; what is read is what the model has.
  void CompareWithModel(Backing& backing, uint32_t unit, bool holes_are_zeroes);

  TempDirectory directory_;
  const uint32_t seed_ = std::random_device()();
  std::mt19937 random_{seed_};
};

void ExpectFileRefused(const FileOptions& options, absl::StatusCode code, const std::string& why) {
  const auto backing = OpenFile(options);
  ASSERT_EQ(backing.status().code(), code) << backing.status();
  EXPECT_THAT(std::string(backing.status().message()), HasSubstr(why));
  EXPECT_THAT(std::string(backing.status().message()), HasSubstr(options.path));
}

void BackingTest::CompareWithModel(Backing& backing, uint32_t unit, bool holes_are_zeroes) {
  SCOPED_TRACE(testing::Message() << "seed " << seed_);
  std::vector<uint8_t> model = Scribble(backing);
  // Data lie anywhere: those of a capsule are behind its command.
  std::vector<uint8_t> memory(backing.bytes() + kPageBytes);
  const uint64_t units = backing.bytes() / unit;
  for (int round = 0; round < 600; ++round) {
    const uint64_t first = random_() % units;
    const uint64_t offset = first * unit;
    const uint64_t length = (1 + random_() % std::min<uint64_t>(units - first, 40)) * unit;
    const auto begin = model.begin() + static_cast<ptrdiff_t>(offset);
    const auto end = begin + static_cast<ptrdiff_t>(length);
    const absl::Span<uint8_t> data(memory.data() + random_() % kPageBytes, length);
    const bool through = random_() % 4 == 0;
    switch (random_() % 5) {
      case 0:
        ASSERT_EQ(backing.Read(offset, data), 0);
        ASSERT_TRUE(std::equal(begin, end, data.begin())) << offset << "+" << length;
        break;
      case 1:
        for (uint8_t& byte : data) byte = static_cast<uint8_t>(random_());
        ASSERT_EQ(backing.Write(offset, data, through), 0);
        std::copy(data.begin(), data.end(), begin);
        break;
      case 2:
        ASSERT_EQ(backing.WriteZeroes(offset, length, random_() % 2 == 0, through), 0);
        std::fill(begin, end, uint8_t{0});
        break;
      case 3:
        ASSERT_EQ(backing.Deallocate(offset, length), 0);
        if (holes_are_zeroes) std::fill(begin, end, uint8_t{0});
        break;
      default:
        ASSERT_EQ(backing.Flush(), 0);
    }
  }
  EXPECT_EQ(ReadAll(backing), model);
}

TEST_F(BackingTest, shouldDoWithMemoryWhatItSays) {
  std::vector<uint8_t> memory(64 * kBlock);
  const auto backing = MakeMemoryBacking(absl::MakeSpan(memory));
  EXPECT_EQ(backing->bytes(), memory.size());
  EXPECT_FALSE(backing->read_only());
  EXPECT_TRUE(backing->prompt());
  EXPECT_FALSE(backing->volatile_cache());
  EXPECT_EQ(backing->memory(), memory.data());
  CompareWithModel(*backing, kBlock, true);
}

TEST_F(BackingTest, shouldDoWithAFileWhatItSays) {
  const auto backing = Open({.path = MakeFile(300 * kBlock)});
  ASSERT_NE(backing, nullptr);
  EXPECT_EQ(backing->bytes(), 300u * kBlock);
  EXPECT_FALSE(backing->read_only());
  EXPECT_FALSE(backing->prompt());
  EXPECT_TRUE(backing->volatile_cache());
  EXPECT_EQ(backing->memory(), nullptr);
  CompareWithModel(*backing, kBlock, true);
  EXPECT_EQ(std::filesystem::file_size(directory_.File("blocks")), 300u * kBlock);
}

TEST_F(BackingTest, shouldDoTheSamePastThePageCache) {
  const std::string path = MakeFile(80 * kPageBytes);
  if (const FileDescriptor probe(open(path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC)); !probe) {
    GTEST_SKIP() << "the file system of /tmp has no direct I/O";
  }
  const auto backing = Open({.path = path, .direct = true, .block_bytes = kPageBytes});
  ASSERT_NE(backing, nullptr);
  CompareWithModel(*backing, kPageBytes, true);
}

TEST_F(BackingTest, shouldKeepWhatWasWrittenForWhoeverOpensTheFileNext) {
  const std::string path = MakeFile(40 * kBlock);
  const std::vector<uint8_t> written = Scribble(*Open({.path = path}));
  const auto again = Open({.path = path, .read_only = true, .prompt = true});
  EXPECT_TRUE(again->read_only());
  EXPECT_TRUE(again->prompt());
  EXPECT_EQ(ReadAll(*again), written);
}

TEST_F(BackingTest, shouldGiveSpaceBackOnlyWhereItIsAsked) {
  const std::string path = MakeFile(64 * kPageBytes);
  const auto backing = Open({.path = path});
  const auto space = [&] {
    struct stat status = {};
    EXPECT_EQ(stat(path.c_str(), &status), 0);
    return static_cast<uint64_t>(status.st_blocks) * 512;
  };
  Scribble(*backing);
  EXPECT_EQ(backing->Flush(), 0);
  const uint64_t all = space();
  ASSERT_GE(all, 64u * kPageBytes);
  EXPECT_EQ(backing->WriteZeroes(0, 32 * kPageBytes, false, true), 0);
  EXPECT_EQ(space(), all);
  EXPECT_EQ(backing->WriteZeroes(0, 16 * kPageBytes, true, true), 0);
  EXPECT_LE(space(), all - 16 * kPageBytes);
  EXPECT_EQ(backing->Deallocate(16 * kPageBytes, 16 * kPageBytes), 0);
  EXPECT_LE(space(), all - 32 * kPageBytes);
}

TEST_F(BackingTest, shouldNotWriteWhatIsReadOnly) {
  const std::string path = MakeFile(8 * kBlock);
  const auto backing = Open({.path = path, .read_only = true});
  std::vector<uint8_t> block(kBlock, 1);
  EXPECT_EQ(backing->Write(0, block, false), EBADF);
  EXPECT_EQ(backing->WriteZeroes(0, kBlock, false, false), EBADF);
  EXPECT_EQ(backing->Deallocate(0, kBlock), EBADF);
  EXPECT_EQ(backing->Flush(), 0);
  EXPECT_EQ(ReadAll(*backing), std::vector<uint8_t>(8 * kBlock));
}

TEST_F(BackingTest, shouldFailToReadWhatHasBeenCutOff) {
  const std::string path = MakeFile(8 * kBlock);
  const auto backing = Open({.path = path});
  const std::vector<uint8_t> written = Scribble(*backing);
  ASSERT_EQ(truncate(path.c_str(), 4 * kBlock + 100), 0);
  std::vector<uint8_t> data(8 * kBlock);
  EXPECT_EQ(backing->Read(0, absl::MakeSpan(data)), EIO);
  EXPECT_EQ(backing->Read(5 * kBlock, {data.data(), kBlock}), EIO);
  EXPECT_EQ(backing->Read(4 * kBlock, {data.data(), kBlock}), EIO);
  EXPECT_EQ(backing->Read(0, {data.data(), 4 * kBlock}), 0);
  EXPECT_TRUE(std::equal(data.begin(), data.begin() + 4 * kBlock, written.begin()));
  // What is written is there again.
  EXPECT_EQ(backing->Write(4 * kBlock, {written.data() + 4 * kBlock, 4 * kBlock}, false), 0);
  EXPECT_EQ(ReadAll(*backing), written);
}

TEST_F(BackingTest, shouldSayThatAFileMayNotGrow) {
  const std::string path = MakeFile(8 * kPageBytes);
  const auto backing = Open({.path = path});
  std::vector<uint8_t> data(8 * kPageBytes, 7);
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit limit = before;
  limit.rlim_cur = 4 * kPageBytes;
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  const int beyond = backing->Write(4 * kPageBytes, {data.data(), kPageBytes}, false);
  const int across = backing->Write(3 * kPageBytes, {data.data(), 2 * kPageBytes}, false);
  const int within = backing->Write(0, {data.data(), kPageBytes}, false);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  signal(SIGXFSZ, handler);
  EXPECT_EQ(beyond, EFBIG);
  EXPECT_EQ(across, EFBIG);
  EXPECT_EQ(within, 0);
}

TEST_F(BackingTest, shouldRefuseSizesThatAreNoBlocks) {
  ExpectFileRefused({.path = MakeFile(0)}, absl::StatusCode::kInvalidArgument, "has 0 bytes");
  ExpectFileRefused({.path = MakeFile(511)}, absl::StatusCode::kInvalidArgument, "has 511 bytes");
  ExpectFileRefused({.path = MakeFile(5 * 512), .block_bytes = 1024},
                    absl::StatusCode::kInvalidArgument,
                    "has 2560 bytes, not a multiple of block_bytes, 1024");
  EXPECT_EQ(Open({.path = MakeFile(4 * 512), .block_bytes = 1024})->bytes(), 2048u);
}

TEST_F(BackingTest, shouldRefuseWhatIsNoFile) {
  ExpectFileRefused({.path = directory_.File("none")}, absl::StatusCode::kNotFound,
                    "No such file or directory");
  ExpectFileRefused({.path = directory_.path(), .read_only = true},
                    absl::StatusCode::kInvalidArgument, "neither a file nor a block device");
  ExpectFileRefused({.path = directory_.path()}, absl::StatusCode::kInvalidArgument,
                    "neither a file nor a block device");
  ExpectFileRefused({.path = "/dev/zero"}, absl::StatusCode::kInvalidArgument,
                    "neither a file nor a block device");
  // Opening it for reading would wait for somebody who writes.
  const std::string pipe = directory_.File("pipe");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  ExpectFileRefused({.path = pipe, .read_only = true}, absl::StatusCode::kInvalidArgument,
                    "neither a file nor a block device");
  ExpectFileRefused({.path = pipe}, absl::StatusCode::kInvalidArgument,
                    "neither a file nor a block device");
}

// Files of the kernel's, for one, are of size 0, and cannot be opened past the page cache.
TEST_F(BackingTest, shouldSayThatDirectIsWhatCannotBeHad) {
  const std::string path = "/proc/self/status";
  const auto backing = OpenFile({.path = path, .direct = true, .read_only = true});
  ASSERT_EQ(backing.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(backing.status().message()), HasSubstr("direct: " + path));
}

}  // namespace
}  // namespace baton::nvmed
