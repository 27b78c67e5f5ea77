#include "supervisor/inspect/snapshot_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <boost/crc.hpp>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "tests/harness/file_content.h"
#include "tests/harness/temp_directory.h"
#include "tests/supervisor/inspect/known_arena.h"

namespace baton::inspect {
namespace {

using ::testing::AnyOf;
using testing::FilesOf;
using ::testing::HasSubstr;
using testing::KnownArena;

const Selection kEverything = {.connections = true, .work_requests = true, .state = true};

// Its checksums as they are to be: what somebody would make who knows the format.
void Sign(std::string* file) {
  SnapshotHeader header;
  std::memcpy(&header, file->data(), sizeof(header));
  for (SnapshotPart& part : header.parts) {
    if (part.bytes == 0 || part.offset > file->size() || part.bytes > file->size() - part.offset) {
      continue;
    }
    boost::crc_32_type crc;
    crc.process_bytes(file->data() + part.offset, part.bytes);
    part.checksum = crc.checksum();
  }
  header.checksum = 0;
  boost::crc_32_type crc;
  crc.process_bytes(&header, sizeof(header));
  header.checksum = crc.checksum();
  std::memcpy(file->data(), &header, sizeof(header));
}

class SnapshotFileTest : public ::testing::Test {
 protected:
  // Without the recovery memory, to be small.
  absl::StatusOr<uint64_t> Save(const SnapshotOptions& options = {}) {
    ArenaFiles files = FilesOf(arena_);
    files.memories[arena::kRecoveryMemory] = Memory();
    const auto view = ArenaView::Open(std::move(files), "kv");
    EXPECT_TRUE(view.ok()) << view.status();
    return SaveSnapshot(*view, path_, options);
  }
  void Write(const std::string& bytes) {
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << bytes;
  }
  // Everything of it, or why not.
  absl::StatusOr<v1::Inspection> Read() {
    auto files = OpenSnapshot(path_);
    if (!files.ok()) return files.status();
    const uint64_t saved = files->saved_monotonic_ns;
    const auto view = ArenaView::Open(*std::move(files), "");
    if (!view.ok()) return view.status();
    return Inspect(*view, kEverything, saved);
  }
  size_t FilesThere() {
    return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(directory_.path()),
                                             std::filesystem::directory_iterator()));
  }

  const harness::TempDirectory directory_ = *harness::TempDirectory::Create();
  const std::string path_ = directory_.File("kv.snapshot");
  const arena::Arena arena_ = KnownArena();
};

TEST_F(SnapshotFileTest, shouldShowWhatTheArenaShows) {
  const auto saved = Save({.decoder = "/opt/decode"});
  ASSERT_TRUE(saved.ok()) << saved.status();
  EXPECT_EQ(*saved, std::filesystem::file_size(path_));
  auto offline = Read();
  ASSERT_TRUE(offline.ok()) << offline.status();
  EXPECT_EQ(offline->source().kind(), "file");
  EXPECT_EQ(offline->source().file(), path_);
  EXPECT_EQ(offline->source().pid(), 4711);
  EXPECT_EQ(offline->source().program(), "baton-keeper");
  EXPECT_EQ(offline->source().decoder(), "/opt/decode");
  EXPECT_FALSE(offline->source().buffers());
  EXPECT_GT(offline->source().saved_unix_micros(), 0);
  const auto view = ArenaView::Open(FilesOf(arena_), "kv");
  ASSERT_TRUE(view.ok()) << view.status();
  auto live = Inspect(*view, kEverything, 0);
  ASSERT_TRUE(live.ok()) << live.status();
  for (v1::Inspection* one : {&*offline, &*live}) {
    one->clear_source();
    one->clear_age_seconds();
    one->clear_invalid();
  }
  EXPECT_EQ(offline->DebugString(), live->DebugString());
}

TEST_F(SnapshotFileTest, shouldHaveTheBytesOfItsSpecification) {
  ASSERT_TRUE(Save().ok());
  const std::string file = harness::ReadFile(path_);
  EXPECT_EQ(file.substr(0, 8), "BATONSNP");
  const auto number = [&](size_t at) {
    uint64_t value;
    std::memcpy(&value, file.data() + at, sizeof(value));
    return value;
  };
  EXPECT_EQ(static_cast<uint32_t>(number(8)), 1u);
  EXPECT_EQ(number(16), file.size());
  EXPECT_STREQ(file.data() + 48, "kv");
  const uint64_t huge_page = 2u << 20;
  EXPECT_EQ(number(432 + 32), 4096u);  // the driver log, which is copied first
  EXPECT_EQ(number(440 + 32), huge_page);
  EXPECT_EQ(number(432), 4096 + huge_page);  // the worker log
  EXPECT_EQ(number(440), huge_page);
  EXPECT_EQ(number(440 + 2 * 32), 0u);  // no buffers
  EXPECT_EQ(file.size(), 4096 + 2 * huge_page);
  EXPECT_STREQ(file.data() + 4096 + offsetof(arena::DriverMemoryHeader, service), "kv");
  EXPECT_EQ(file.substr(number(432), 8), "BATONAN1");
}

TEST_F(SnapshotFileTest, shouldHaveAllMemories) {
  arena_.buffers()[100] = 42;
  arena_.spare_buffer(1, 2)[3] = 43;
  const auto view = ArenaView::Open(FilesOf(arena_), "kv");
  ASSERT_TRUE(view.ok()) << view.status();
  ASSERT_TRUE(SaveSnapshot(*view, path_, {.buffers = true}).ok());
  const auto files = OpenSnapshot(path_);
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_EQ(*files->buffers().Read<uint8_t>(100), 42);
  EXPECT_EQ(*files->recovery().Read<uint8_t>(arena_.recovery_map().SpareBuffer(1, 2) + 3), 43);
}

TEST_F(SnapshotFileTest, shouldBeForTheOwnerAloneAndSparse) {
  ASSERT_TRUE(Save().ok());
  struct stat info = {};
  ASSERT_EQ(stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0600u);
  EXPECT_LT(info.st_blocks * 512, info.st_size / 4);
  EXPECT_EQ(FilesThere(), 1u);
}

TEST_F(SnapshotFileTest, shouldNotOverwriteUnlessToldTo) {
  Write("precious");
  const absl::Status status = Save().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(status.message()), HasSubstr("--force overwrites it"));
  EXPECT_EQ(harness::ReadFile(path_), "precious");
  EXPECT_EQ(FilesThere(), 1u);
  ASSERT_TRUE(Save({.overwrite = true}).ok());
  EXPECT_TRUE(Read().ok());
  EXPECT_EQ(FilesThere(), 1u);
}

TEST_F(SnapshotFileTest, shouldRefuseATargetThatIsNoFile) {
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  EXPECT_EQ(Save({.overwrite = true}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(OpenSnapshot(path_).status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(SnapshotFileTest, shouldLeaveNothingWhereItCannotBeWritten) {
  const auto view = ArenaView::Open(FilesOf(arena_), "kv");
  ASSERT_TRUE(view.ok()) << view.status();
  const auto missing = SaveSnapshot(*view, directory_.File("none/kv"), {});
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound) << missing.status();
  // What a file may have, as a full disk would: the rest is not written, and what was is removed.
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small = {1 << 20, before.rlim_max};
  const auto former = signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const auto saved = Save();
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  signal(SIGXFSZ, former);
  EXPECT_FALSE(saved.ok());
  EXPECT_EQ(FilesThere(), 0u);
}

TEST_F(SnapshotFileTest, shouldSayThatThereAreNoBuffers) {
  ArenaFiles files = FilesOf(arena_);
  files.memories[arena::kBuffersMemory] = Memory();
  const auto view = ArenaView::Open(std::move(files), "kv");
  ASSERT_TRUE(view.ok()) << view.status();
  EXPECT_EQ(SaveSnapshot(*view, path_, {.buffers = true}).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

// ---------------------------------------------------------------- files of others

TEST_F(SnapshotFileTest, shouldRefuseEveryTruncation) {
  ASSERT_TRUE(Save().ok());
  const uint64_t size = std::filesystem::file_size(path_);
  // Each length of the header, then each page and its neighbours.
  std::vector<uint64_t> lengths;
  for (uint64_t length = 0; length <= 4096; ++length) lengths.push_back(length);
  for (uint64_t page = 8192; page < size; page += 4096) {
    lengths.insert(lengths.end(), {page - 1, page, page + 1});
  }
  lengths.push_back(size - 1);
  std::sort(lengths.rbegin(), lengths.rend());
  for (const uint64_t length : lengths) {
    ASSERT_EQ(truncate(path_.c_str(), static_cast<off_t>(length)), 0);
    const auto read = Read();
    ASSERT_EQ(read.status().code(), absl::StatusCode::kDataLoss) << length << read.status();
  }
}

TEST_F(SnapshotFileTest, shouldNoticeEveryFlippedBit) {
  ASSERT_TRUE(Save().ok());
  const std::string good = harness::ReadFile(path_);
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 random(seed);
  for (int i = 0; i < 40; ++i) {
    std::string bad = good;
    // Half of them in the header.
    const size_t at = random() % (i % 2 == 0 ? sizeof(SnapshotHeader) : bad.size());
    bad[at] = static_cast<char>(bad[at] ^ 1 << random() % 8);
    Write(bad);
    EXPECT_THAT(Read().status().code(),
                AnyOf(absl::StatusCode::kDataLoss, absl::StatusCode::kFailedPrecondition))
        << at;
  }
}

// With good checksums: everything in it may be anything, and no answer but an answer is wrong.
TEST_F(SnapshotFileTest, shouldReadWhatSomebodyHasMade) {
  ASSERT_TRUE(Save().ok());
  const std::string good = harness::ReadFile(path_);
  SnapshotHeader header;
  std::memcpy(&header, good.data(), sizeof(header));
  const unsigned seed = std::random_device()();
  std::printf("seed %u\n", seed);
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937_64 random(seed);
  int shown = 0;
  for (int i = 0; i < 100; ++i) {
    std::string bad = good;
    const SnapshotPart& part = header.parts[i % 3 == 0 ? 0 : 1];
    // The beginnings, where the records are; rarely the shape, which most often is refused.
    const uint64_t begin = i % 10 == 0 ? 0 : 4096;
    for (uint64_t flips = 1 + random() % 64; flips > 0; --flips) {
      const uint64_t word = random() % 8 == 0 ? random() : uint64_t{1} << random() % 64;
      const uint64_t at = part.offset + begin + random() % (32768 - begin) / 8 * 8;
      uint64_t value;
      std::memcpy(&value, bad.data() + at, sizeof(value));
      value ^= word;
      std::memcpy(bad.data() + at, &value, sizeof(value));
    }
    if (i % 7 == 0) bad[432 + random() % 128] ^= static_cast<char>(1 << random() % 8);
    Sign(&bad);
    Write(bad);
    shown += Read().ok();
  }
  EXPECT_GT(shown, 50);  // and not all were refused
}

TEST_F(SnapshotFileTest, shouldRefusePartsOutsideOfTheFile) {
  ASSERT_TRUE(Save().ok());
  const std::string good = harness::ReadFile(path_);
  const auto with = [&](size_t at, uint64_t value) {
    std::string bad = good;
    std::memcpy(bad.data() + at, &value, sizeof(value));
    Sign(&bad);
    Write(bad);
    return std::string(Read().status().message());
  };
  EXPECT_THAT(with(432, 0), HasSubstr("outside"));
  EXPECT_THAT(with(432, 4097), HasSubstr("outside"));
  EXPECT_THAT(with(432, ~uint64_t{4095}), HasSubstr("outside"));
  EXPECT_THAT(with(440, ~uint64_t{0}), HasSubstr("outside"));
  EXPECT_THAT(with(440, 0), HasSubstr("no logs"));
  EXPECT_THAT(with(440, 4096), HasSubstr("worker log memory has 4096 bytes"));
  EXPECT_THAT(with(16, 5), HasSubstr(" bytes of 5"));
  EXPECT_THAT(with(8, 2), HasSubstr("version 2, this baton reads version 1"));
}

}  // namespace
}  // namespace baton::inspect
