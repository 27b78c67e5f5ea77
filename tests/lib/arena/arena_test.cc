#include "lib/arena/arena.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

namespace baton::arena {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

Shape SmallShape() {
  Shape shape = {};
  shape.shards = 2;
  shape.connections = 3;
  shape.send_queue_depth = 4;
  shape.receive_queue_depth = 8;
  shape.connection_state_bytes = 64;
  shape.shard_state_bytes = 128;
  shape.workers = 2;
  shape.buffer_bytes = 8192;
  shape.completion_log_entries = static_cast<uint32_t>(RequiredCompletionEntries(shape));
  return shape;
}

FileDescriptor Copy(int fd) { return FileDescriptor(fcntl(fd, F_DUPFD_CLOEXEC, 0)); }

// Memory that could be handed over as an arena's, with `bytes` copied from `from`.
FileDescriptor Forged(int from, uint64_t bytes) {
  FileDescriptor fd(memfd_create("forged", MFD_CLOEXEC));
  std::string content(bytes, '\0');
  EXPECT_EQ(pread(from, content.data(), bytes, 0), static_cast<ssize_t>(bytes));
  EXPECT_EQ(pwrite(fd.get(), content.data(), bytes, 0), static_cast<ssize_t>(bytes));
  return fd;
}

class ArenaTest : public ::testing::Test {
 protected:
  absl::Status MapWithDriverLog(FileDescriptor driver_log) {
    return Arena::Map(Copy(arena.worker_log_fd()), std::move(driver_log), Copy(arena.buffers_fd()))
        .status();
  }
  // The driver log memory with one field of its header overwritten.
  template <typename T>
  FileDescriptor DriverLogWith(size_t offset, T value) {
    FileDescriptor fd =
        Forged(arena.driver_log_fd(), AlignUp(arena.driver_map().total, kHugePageBytes));
    EXPECT_EQ(pwrite(fd.get(), &value, sizeof(value), static_cast<off_t>(offset)),
              static_cast<ssize_t>(sizeof(value)));
    return fd;
  }

  Arena arena = Arena::Create(SmallShape(), "kv").value();
};

TEST_F(ArenaTest, shouldRefuseToChangeTheSizeOfAnyMemory) {
  for (const int fd : {arena.worker_log_fd(), arena.driver_log_fd(), arena.buffers_fd()}) {
    for (const off_t size : {off_t{0}, off_t{4096}, off_t{1} << 30}) {
      EXPECT_EQ(ftruncate(fd, size), -1);
      EXPECT_EQ(errno, EPERM);
    }
  }
}

TEST_F(ArenaTest, shouldRefuseFurtherSeals) {
  for (const int fd : {arena.worker_log_fd(), arena.driver_log_fd(), arena.buffers_fd()}) {
    EXPECT_EQ(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), -1);
    EXPECT_EQ(errno, EPERM);
    EXPECT_NE(fcntl(fd, F_GET_SEALS) & F_SEAL_SEAL, 0);
  }
}

TEST_F(ArenaTest, shouldLetTheDriverLogOnlyBeRead) {
  const size_t size = arena.driver_map().total;
  EXPECT_EQ(mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, arena.driver_log_fd(), 0),
            MAP_FAILED);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(pwrite(arena.driver_log_fd(), "x", 1, 0), -1);
  EXPECT_EQ(errno, EPERM);
  void* readable = mmap(nullptr, size, PROT_READ, MAP_SHARED, arena.driver_log_fd(), 0);
  ASSERT_NE(readable, MAP_FAILED);
  EXPECT_EQ(std::memcmp(readable, &arena.header(), sizeof(DriverMemoryHeader)), 0);
  EXPECT_EQ(mprotect(readable, size, PROT_READ | PROT_WRITE), -1);
  munmap(readable, size);
}

// A hole reads as zeros: it would be a way of writing.
TEST_F(ArenaTest, shouldLetNobodyMakeHolesInTheDriverLog) {
  const int mode = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
  EXPECT_EQ(fallocate(arena.driver_log_fd(), mode, 0, 4096), -1);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(fallocate(arena.driver_log_fd(), FALLOC_FL_ZERO_RANGE, 0, 4096), -1);
  // A worker can also try with a descriptor that it has opened itself.
  const std::string path = "/proc/self/fd/" + std::to_string(arena.driver_log_fd());
  const FileDescriptor again(open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (again) {
    EXPECT_EQ(fallocate(again.get(), mode, 0, 4096), -1);
  }
  EXPECT_NE(arena.header().magic, 0u);
}

TEST_F(ArenaTest, shouldStillBeWritableByItsDriverAfterSealing) {
  arena.shard(1).acknowledged = 77;
  uint64_t seen = 0;
  ASSERT_EQ(
      pread(arena.driver_log_fd(), &seen, sizeof(seen),
            static_cast<off_t>(arena.driver_map().Shard(1) + offsetof(ShardRecord, acknowledged))),
      8);
  EXPECT_EQ(seen, 77u);
}

TEST_F(ArenaTest, shouldShowTheSameMemoryToAWorker) {
  auto mapped = Arena::Map(Copy(arena.worker_log_fd()), Copy(arena.driver_log_fd()),
                           Copy(arena.buffers_fd()));
  ASSERT_TRUE(mapped.ok()) << mapped.status();
  EXPECT_EQ(std::memcmp(&mapped->shape(), &arena.shape(), sizeof(Shape)), 0);
  arena.connection(2).generation = 9;
  EXPECT_EQ(mapped->connection(2).generation, 9u);
  mapped->send_request(2, 7).tag = 5;
  EXPECT_EQ(arena.send_request(2, 7).tag, 5u);
  mapped->buffers()[8191] = 42;
  EXPECT_EQ(arena.buffers()[8191], 42);
  EXPECT_STREQ(mapped->header().service, "kv");
}

TEST_F(ArenaTest, shouldWrapItsLogs) {
  EXPECT_EQ(&arena.send_request(1, 3), &arena.send_request(1, 3 + 8));
  EXPECT_EQ(&arena.receive_request(1, 3), &arena.receive_request(1, 3 + 16));
  EXPECT_EQ(&arena.commit_entry(1, 2, 5), &arena.commit_entry(1, 2, 5 + kCommitLogEntries));
  EXPECT_EQ(&arena.completion(1, 6),
            &arena.completion(1, 6 + arena.shape().completion_log_entries));
}

TEST_F(ArenaTest, shouldBeginWithoutOwners) {
  for (uint32_t shard = 0; shard < 2; ++shard) {
    EXPECT_EQ(OwnershipSlot(arena.shard(shard).owner.ownership), kNobody);
    EXPECT_EQ(OwnershipEpoch(arena.shard(shard).owner.ownership), 0u);
  }
}

TEST_F(ArenaTest, shouldKnowWhatLiesWithinARegion) {
  EXPECT_EQ(arena.header().regions, kRegions);
  EXPECT_FALSE(arena.HasRegionWith({RegionOffset(7), 1, 0}));
  arena.region(7).length = 100;
  EXPECT_TRUE(arena.HasRegionWith({RegionOffset(7), 100, 0}));
  EXPECT_TRUE(arena.HasRegionWith({RegionOffset(7) + 99, 1, 0}));
  EXPECT_FALSE(arena.HasRegionWith({RegionOffset(7), 101, 0}));
  EXPECT_FALSE(arena.HasRegionWith({RegionOffset(7) + 99, ~0u, 0}));
  EXPECT_FALSE(arena.HasRegionWith({RegionOffset(7) + 100, 0, 0}));
  EXPECT_FALSE(arena.HasRegionWith({RegionOffset(7) - 1, 1, 0}));
  EXPECT_FALSE(arena.HasRegionWith({RegionOffset(8), 1, 0}));
  EXPECT_FALSE(arena.HasRegionWith({0, 1, 0}));
}

TEST_F(ArenaTest, shouldRefuseToMapMemoryWithoutItsMagic) {
  const absl::Status status = MapWithDriverLog(DriverLogWith(0, uint64_t{12345}));
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("not ready or not Baton's"));
}

TEST_F(ArenaTest, shouldRefuseToMapBeforeTheArenaIsReady) {
  EXPECT_EQ(MapWithDriverLog(DriverLogWith(8, uint32_t{0})).code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(ArenaTest, shouldNameBothVersionsWhenTheyDiffer) {
  const absl::Status status = MapWithDriverLog(DriverLogWith(8, uint32_t{4711}));
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("layout version 4711"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("reads versions 1 to 2"));
}

// What a reader of version 1 looks at says 1, and what it knows is where it was.
TEST_F(ArenaTest, shouldBeReadableForTheVersionBefore) {
  EXPECT_EQ(arena.header().oldest_reader, 1u);
  EXPECT_EQ(arena.layout_version(), 2u);
}

// A worker that does not know shared receives would post its receives where nobody looks.
TEST_F(ArenaTest, shouldBeReadableWithSharedReceivesForThoseWhoKnowThem) {
  Shape shape = arena.shape();
  shape.shared_receive_queue_depth = 16;
  shape.completion_log_entries = static_cast<uint32_t>(RequiredCompletionEntries(shape));
  const Arena shared = Arena::Create(shape, "kv").value();
  EXPECT_EQ(shared.header().oldest_reader, 2u);
  const auto mapped = Arena::Map(Copy(shared.worker_log_fd()), Copy(shared.driver_log_fd()),
                                 Copy(shared.buffers_fd()));
  ASSERT_TRUE(mapped.ok()) << mapped.status();
  EXPECT_EQ(mapped->shape().shared_receive_queue_depth, 16u);
  shape.shared_receive_queue_depth = 12;
  EXPECT_THAT(std::string(ValidateShape(shape).message()),
              StartsWith("shared_receive_queue_depth: 12 is not a power of two"));
  for (const uint32_t outside : {1u, 8192u}) {
    shape.shared_receive_queue_depth = outside;
    EXPECT_FALSE(ValidateShape(shape).ok()) << outside;
  }
}

TEST_F(ArenaTest, shouldMapAnArenaOfTheVersionBefore) {
  const auto mapped = Arena::Map(Copy(arena.worker_log_fd()), DriverLogWith(12, uint32_t{0}),
                                 Copy(arena.buffers_fd()));
  ASSERT_TRUE(mapped.ok()) << mapped.status();
  EXPECT_EQ(mapped->layout_version(), 1u);
}

TEST_F(ArenaTest, shouldMapALaterArenaThatItsReadersFit) {
  const auto mapped = Arena::Map(Copy(arena.worker_log_fd()), DriverLogWith(12, uint32_t{3}),
                                 Copy(arena.buffers_fd()));
  ASSERT_TRUE(mapped.ok()) << mapped.status();
  EXPECT_EQ(mapped->layout_version(), 2u);
}

TEST_F(ArenaTest, shouldRefuseToMapAnImpossibleShape) {
  const absl::Status status = MapWithDriverLog(
      DriverLogWith(offsetof(DriverMemoryHeader, shape) + offsetof(Shape, shards), uint32_t{65}));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), StartsWith("shards: 65"));
}

TEST_F(ArenaTest, shouldRefuseDriverLogMemoryOfAnotherSizeThanItsShape) {
  FileDescriptor longer = Forged(arena.driver_log_fd(), arena.driver_map().total);
  ASSERT_EQ(ftruncate(longer.get(), static_cast<off_t>(arena.driver_map().total + 4096)), 0);
  EXPECT_EQ(MapWithDriverLog(std::move(longer)).code(), absl::StatusCode::kFailedPrecondition);
  FileDescriptor tiny(memfd_create("tiny", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(tiny.get(), 100), 0);
  const absl::Status status = MapWithDriverLog(std::move(tiny));
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("too small"));
}

TEST_F(ArenaTest, shouldNameTheMemoryOfTheWrongSize) {
  FileDescriptor short_log = Forged(arena.worker_log_fd(), arena.worker_map().total - 4096);
  const absl::Status worker_log =
      Arena::Map(std::move(short_log), Copy(arena.driver_log_fd()), Copy(arena.buffers_fd()))
          .status();
  EXPECT_EQ(worker_log.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(worker_log.message()), HasSubstr("worker log memory"));
  FileDescriptor short_buffers = Forged(arena.buffers_fd(), 4096);
  const absl::Status buffers =
      Arena::Map(Copy(arena.worker_log_fd()), Copy(arena.driver_log_fd()), std::move(short_buffers))
          .status();
  EXPECT_EQ(buffers.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(buffers.message()), HasSubstr("buffers has 4096 bytes"));
}

TEST_F(ArenaTest, shouldRefuseWhatIsNotADescriptor) {
  EXPECT_FALSE(MapWithDriverLog(FileDescriptor()).ok());
  EXPECT_FALSE(
      Arena::Map(FileDescriptor(), Copy(arena.driver_log_fd()), Copy(arena.buffers_fd())).ok());
}

// smaps(5), in KiB, of the mappings of the memfd NAME.
uint64_t OnHugePages(const std::string& name) {
  std::ifstream smaps("/proc/self/smaps");
  uint64_t total = 0;
  bool its = false;
  for (std::string line; std::getline(smaps, line);) {
    // The line that begins a mapping has its addresses and its file.
    if (line.find_first_of(":-") < line.size() && line[line.find_first_of(":-")] == '-') {
      its = line.find("memfd:" + name + ".") != std::string::npos;
    }
    uint64_t kib = 0;
    if (its && sscanf(line.c_str(), "ShmemPmdMapped: %" SCNu64, &kib) == 1) total += kib;
  }
  return total;
}

// What a process that dies has to take down, and its successor to build.
TEST(ArenaCreate, shouldBeOnHugePagesForAllWhoMapIt) {
  constexpr int kCollapse = 25;  // MADV_COLLAPSE, which Debian 12's headers do not have
  if (madvise(nullptr, 0, kCollapse) != 0) GTEST_SKIP() << "a kernel without MADV_COLLAPSE";
  Shape shape = SmallShape();
  shape.buffer_bytes = uint64_t{8} << 20;
  auto created = Arena::Create(shape, "huge");
  ASSERT_TRUE(created.ok()) << created.status();
  EXPECT_EQ(OnHugePages("baton-buffers-huge"), 8192u);
  EXPECT_EQ(OnHugePages("baton-worker-log-huge"), 2048u);
  auto mapped = Arena::Map(Copy(created->worker_log_fd()), Copy(created->driver_log_fd()),
                           Copy(created->buffers_fd()));
  ASSERT_TRUE(mapped.ok()) << mapped.status();
  EXPECT_EQ(OnHugePages("baton-buffers-huge"), 2 * 8192u);
}

// Returns, for each mapping of the memfd NAME, whether a core dump has it.
std::vector<bool> AreDumped(const std::string& name) {
  std::ifstream smaps("/proc/self/smaps");
  std::vector<bool> dumped;
  bool is_ours = false;
  for (std::string line; std::getline(smaps, line);) {
    if (line.find('-') < line.find(' ')) {
      is_ours = line.find("/memfd:" + name) != std::string::npos;
    } else if (is_ours && line.rfind("VmFlags:", 0) == 0) {
      dumped.push_back((line + " ").find(" dd ") == std::string::npos);
    }
  }
  return dumped;
}

// Returns the bytes of a page of the pool, if the file is on such pages; otherwise 0.
uint64_t PoolPageOf(int fd) {
  struct statfs system = {};
  EXPECT_EQ(fstatfs(fd, &system), 0);
  return system.f_type == HUGETLBFS_MAGIC ? static_cast<uint64_t>(system.f_bsize) : 0;
}

uint64_t FreePagesOfThePool() {
  std::ifstream file("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
  uint64_t pages = 0;
  file >> pages;
  return pages;
}

// Most machines have no such pages, and run the half of this that falls back.
TEST(ArenaCreate, shouldHaveItsBuffersOnPagesOfThePoolOrSayWhyNot) {
  Shape shape = SmallShape();
  shape.buffer_bytes = 2 * kHugePageBytes;
  const uint64_t free = FreePagesOfThePool();
  const Arena created = Arena::Create(shape, "pool", kHugePageBytes).value();
  if (free == 0) {
    EXPECT_FALSE(created.huge_pages().ok());
  }
  EXPECT_EQ(PoolPageOf(created.buffers_fd()), created.huge_pages().ok() ? kHugePageBytes : 0)
      << created.huge_pages();
  EXPECT_EQ(PoolPageOf(created.worker_log_fd()), 0u);
  created.buffers()[shape.buffer_bytes - 1] = 7;
  const Arena mapped = Arena::Map(Copy(created.worker_log_fd()), Copy(created.driver_log_fd()),
                                  Copy(created.buffers_fd()))
                           .value();
  EXPECT_EQ(mapped.buffers()[shape.buffer_bytes - 1], 7);
  uint8_t read = 0;  // as operators' tools do
  ASSERT_EQ(pread(created.buffers_fd(), &read, 1, static_cast<off_t>(shape.buffer_bytes - 1)), 1);
  EXPECT_EQ(read, 7);
  EXPECT_EQ(AreDumped("baton-buffers-pool"), std::vector<bool>(2, false));
}

TEST(ArenaCreate, shouldFallBackWhereBuffersAreNoWholePages) {
  const Arena created = Arena::Create(SmallShape(), "part", uint64_t{1} << 30).value();
  EXPECT_TRUE(absl::IsInvalidArgument(created.huge_pages())) << created.huge_pages();
  EXPECT_EQ(PoolPageOf(created.buffers_fd()), 0u);
  EXPECT_EQ(created.header().oldest_reader, OldestReader(SmallShape()));
  EXPECT_TRUE(Arena::Create(SmallShape(), "none").value().huge_pages().ok());
}

// In `baton-driver`, in what it forks, and in workers.
TEST(ArenaCreate, shouldBeInNoCoreDumpButForBuffersThatAreAskedFor) {
  for (const bool asked : {false, true}) {
    Shape shape = SmallShape();
    shape.dump_buffers = asked ? 1 : 0;
    const std::string service = asked ? "dumped" : "kept";
    const Arena created = Arena::Create(shape, service).value();
    const Arena mapped = Arena::Map(Copy(created.worker_log_fd()), Copy(created.driver_log_fd()),
                                    Copy(created.buffers_fd()))
                             .value();
    for (const char* name : kMemoryNames) {
      const bool dumped = asked && std::string(name) == kMemoryNames[kBuffersMemory];
      const size_t mappings = std::string(name) == kMemoryNames[kRecoveryMemory] ? 1 : 2;
      EXPECT_EQ(AreDumped(name + service), std::vector<bool>(mappings, dumped)) << name << service;
    }
  }
}

TEST(ArenaCreate, shouldRefuseAServiceNameThatDoesNotFit) {
  EXPECT_TRUE(Arena::Create(SmallShape(), std::string(63, 'a')).ok());
  EXPECT_EQ(Arena::Create(SmallShape(), std::string(64, 'a')).status().code(),
            absl::StatusCode::kInvalidArgument);
}

struct BadShape {
  std::string field;
  void (*spoil)(Shape*);
};

class ValidateShapeTest : public ::testing::TestWithParam<BadShape> {};

TEST_P(ValidateShapeTest, shouldNameTheBadField) {
  Shape shape = SmallShape();
  ASSERT_TRUE(ValidateShape(shape).ok());
  GetParam().spoil(&shape);
  const absl::Status status = ValidateShape(shape);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr(GetParam().field));
}

INSTANTIATE_TEST_SUITE_P(
    Fields, ValidateShapeTest,
    ::testing::Values(
        BadShape{"shards: 0", [](Shape* s) { s->shards = 0; }},
        BadShape{"shards: 65", [](Shape* s) { s->shards = 65; }},
        BadShape{"connections: 0", [](Shape* s) { s->connections = 0; }},
        BadShape{"connections: 131073", [](Shape* s) { s->connections = 131073; }},
        BadShape{"workers: 0", [](Shape* s) { s->workers = 0; }},
        BadShape{"workers: 65", [](Shape* s) { s->workers = 65; }},
        BadShape{"send_queue_depth: 0", [](Shape* s) { s->send_queue_depth = 0; }},
        BadShape{"send_queue_depth: 3", [](Shape* s) { s->send_queue_depth = 3; }},
        BadShape{"send_queue_depth: 8192", [](Shape* s) { s->send_queue_depth = 8192; }},
        BadShape{"receive_queue_depth: 0", [](Shape* s) { s->receive_queue_depth = 0; }},
        BadShape{"receive_queue_depth: 6", [](Shape* s) { s->receive_queue_depth = 6; }},
        BadShape{"receive_queue_depth: 8192", [](Shape* s) { s->receive_queue_depth = 8192; }},
        BadShape{"connection_state_bytes: 0", [](Shape* s) { s->connection_state_bytes = 0; }},
        BadShape{"connection_state_bytes", [](Shape* s) { s->connection_state_bytes = 100; }},
        BadShape{"connection_state_bytes: 1048640",
                 [](Shape* s) { s->connection_state_bytes = (1u << 20) + 64; }},
        BadShape{"shard_state_bytes: 0", [](Shape* s) { s->shard_state_bytes = 0; }},
        BadShape{"shard_state_bytes", [](Shape* s) { s->shard_state_bytes = 65; }},
        BadShape{"shard_state_bytes: 1048640",
                 [](Shape* s) { s->shard_state_bytes = (1u << 20) + 64; }},
        BadShape{"buffer_bytes: 0", [](Shape* s) { s->buffer_bytes = 0; }},
        BadShape{"buffer_bytes", [](Shape* s) { s->buffer_bytes = 4097; }},
        BadShape{"buffer_bytes", [](Shape* s) { s->buffer_bytes = (uint64_t{1} << 40) + 4096; }},
        BadShape{"completion_log_entries: 64", [](Shape* s) { s->completion_log_entries = 64; }},
        BadShape{"completion_log_entries: 129", [](Shape* s) { s->completion_log_entries = 129; }},
        BadShape{"connections x queue depths", [](Shape* s) {
                   s->connections = 65536;
                   s->send_queue_depth = s->receive_queue_depth = 4096;
                 }}));

}  // namespace
}  // namespace baton::arena
