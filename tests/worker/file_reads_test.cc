// Reads of files into a heap. A pipe stands for a file whose bytes come late, and which ends when
// the test says so.
#include "worker/file_reads.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lib/base/file_descriptor.h"
#include "tests/harness/temp_directory.h"
#include "tests/worker/worker_fixture.h"
#include "worker/heap.h"

namespace baton {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::kHeapBytes;
using testing::ScriptedService;
using testing::WorkerFixture;
using Progress = FileReads::Progress;

constexpr uint32_t kHeader = 32;
constexpr uint32_t kLength = 4000;

class FileReadsTest : public WorkerFixture {
 protected:
  void Serve(bool outside_effects = true, uint32_t heap_bytes = kHeapBytes) {
    Start([=](v1::ServiceConfig* config) {
      config->set_shard_heap_bytes(heap_bytes);
      config->set_outside_effects(outside_effects);
    });
    service = &NewService();
    worker = Add(service);
    ASSERT_TRUE(Until([&] { return service->shards.size() == 1; }));
    shard = service->shards.at(0);
  }
  void ServeWith(const FileReads::Options& options) {
    ASSERT_NO_FATAL_FAILURE(Serve());
    auto made = FileReads::Create(*worker, options);
    ASSERT_TRUE(made.ok()) << made.status();
    reads = *std::move(made);
    service->on_release = [this](Shard& released) { reads->Finish(released); };
  }
  std::unique_ptr<FileRequester> NewRequester(std::function<void()> wake = [] {}) {
    return std::make_unique<FileRequester>(reads.get(), shard, std::move(wake));
  }
  // A file with bytes that follow from where they are.
  FileDescriptor MakeFile(uint32_t length) const {
    FileDescriptor file(open(directory.File("file").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    std::vector<uint8_t> bytes(length);
    for (uint32_t i = 0; i < length; ++i) bytes[i] = ByteAt(i);
    EXPECT_EQ(pwrite(file.get(), bytes.data(), length, 0), static_cast<ssize_t>(length));
    return file;
  }
  static uint8_t ByteAt(uint64_t offset) {
    return static_cast<uint8_t>(offset * 31 + offset / 256);
  }
  void ExpectBytes(const FileReads::Piece& piece, uint64_t offset, uint32_t length) const {
    const uint8_t* const at = shard->heap().At(piece.memory) + kHeader;
    for (uint32_t i = 0; i < length; ++i) {
      ASSERT_EQ(at[i], ByteAt(offset + i)) << "byte " << offset + i;
    }
  }
  FileReads::Piece StartOne(FileRequester& requester, int fd, uint64_t offset = 0,
                            uint32_t length = kLength) {
    const auto piece = reads->Start(requester, fd, offset, kHeader, length);
    EXPECT_TRUE(piece.ok()) << piece.status();
    return piece.value_or(FileReads::Piece());
  }
  uint64_t ScratchBytes() const {
    const auto statistics = shard->heap().statistics();
    EXPECT_TRUE(statistics.ok()) << statistics.status();
    return statistics.ok() ? statistics->scratch : 0;
  }
  bool HasNothing() const { return reads->statistics().pieces == 0 && ScratchBytes() == 0; }

  const harness::TempDirectory directory = harness::TempDirectory::Create().value();
  ScriptedService* service = nullptr;
  Worker* worker = nullptr;
  Shard* shard = nullptr;
  std::unique_ptr<FileReads> reads;
};

class EitherReadsTest : public FileReadsTest, public ::testing::WithParamInterface<bool> {};

// For reads that are under way until the test lets them end. pread cannot do that.
class SlowReadsTest : public FileReadsTest {
 protected:
  void ServeSlowly(FileReads::Options options = {}) {
    ASSERT_NO_FATAL_FAILURE(ServeWith(options));
    if (!reads->uses_io_uring()) GTEST_SKIP() << "no io_uring: " << reads->fallback_reason();
    auto made = MakePipe();
    ASSERT_TRUE(made.ok()) << made.status();
    pipe = *std::move(made);
  }
  void Write(uint64_t offset, uint32_t length) const {
    std::vector<uint8_t> bytes(length);
    for (uint32_t i = 0; i < length; ++i) bytes[i] = ByteAt(offset + i);
    ASSERT_EQ(write(pipe.writing.get(), bytes.data(), length), static_cast<ssize_t>(length));
  }

  Pipe pipe;
};

TEST_F(FileReadsTest, shouldRefuseAServiceWhoseSuccessorsDoNotWaitForDeaths) {
  ASSERT_NO_FATAL_FAILURE(Serve(/*outside_effects=*/false));
  const auto refused = FileReads::Create(*worker, {});
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(refused.status().ToString(), HasSubstr("outside_effects"));
}

TEST_F(FileReadsTest, shouldRefuseAServiceWithoutHeaps) {
  ASSERT_NO_FATAL_FAILURE(Serve(/*outside_effects=*/true, /*heap_bytes=*/0));
  const auto refused = FileReads::Create(*worker, {});
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(refused.status().ToString(), HasSubstr("shard_heap_bytes"));
}

TEST_F(FileReadsTest, shouldRefuseOptionsThatAreOutOfBounds) {
  ASSERT_NO_FATAL_FAILURE(Serve());
  for (const FileReads::Options& options :
       {FileReads::Options{.most_reads = 0}, FileReads::Options{.most_reads = 1025},
        FileReads::Options{.most_bytes = FileReads::kMostPieceBytes - 1}}) {
    EXPECT_EQ(FileReads::Create(*worker, options).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

INSTANTIATE_TEST_SUITE_P(IoUring, EitherReadsTest, ::testing::Values(true));
INSTANTIATE_TEST_SUITE_P(Pread, EitherReadsTest, ::testing::Values(false));

TEST_P(EitherReadsTest, shouldReadPieces) {
  ASSERT_NO_FATAL_FAILURE(ServeWith({.use_io_uring = GetParam()}));
  EXPECT_EQ(reads->uses_io_uring(), reads->fallback_reason().empty());
  EXPECT_LE(reads->uses_io_uring(), GetParam());
  const FileDescriptor file = MakeFile(10 * kLength);
  const auto requester = NewRequester();
  std::vector<FileReads::Piece> pieces;
  for (uint64_t i = 0; i < 10; ++i) {
    pieces.push_back(StartOne(*requester, file.get(), i * kLength));
  }
  reads->Submit(*requester);
  for (uint64_t i = 0; i < 10; ++i) {
    ASSERT_TRUE(Until([&] { return reads->ProgressOf(pieces[i]) == Progress::kRead; }));
    EXPECT_EQ(reads->ErrorOf(pieces[i]), absl::OkStatus());
    ASSERT_NO_FATAL_FAILURE(ExpectBytes(pieces[i], i * kLength, kLength));
  }
  EXPECT_EQ(reads->statistics().pieces, 10u);
  EXPECT_EQ(reads->statistics().bytes, 10u * (kHeader + kLength));
  for (const FileReads::Piece& piece : pieces) reads->Release(piece);
  EXPECT_TRUE(HasNothing());
}

TEST_P(EitherReadsTest, shouldSayThatAFileHasEnded) {
  ASSERT_NO_FATAL_FAILURE(ServeWith({.use_io_uring = GetParam()}));
  const FileDescriptor file = MakeFile(kLength);
  ASSERT_EQ(ftruncate(file.get(), 1000), 0);
  const auto requester = NewRequester();
  const FileReads::Piece piece = StartOne(*requester, file.get());
  reads->Submit(*requester);
  ASSERT_TRUE(Until([&] { return reads->ProgressOf(piece) == Progress::kFailed; }));
  EXPECT_EQ(reads->ErrorOf(piece).code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(reads->ErrorOf(piece).ToString(), HasSubstr("byte 1000"));
  reads->Release(piece);
  EXPECT_TRUE(HasNothing());
}

TEST_F(FileReadsTest, shouldSayWhyAReadHasFailed) {
  ASSERT_NO_FATAL_FAILURE(ServeWith({}));
  const FileDescriptor folder(open(directory.path().c_str(), O_RDONLY | O_CLOEXEC));
  const auto requester = NewRequester();
  const FileReads::Piece piece = StartOne(*requester, folder.get());
  reads->Submit(*requester);
  ASSERT_TRUE(Until([&] { return reads->ProgressOf(piece) == Progress::kFailed; }));
  EXPECT_THAT(reads->ErrorOf(piece).ToString(), HasSubstr("directory"));
  reads->Release(piece);
}

TEST_F(FileReadsTest, shouldRefusePiecesThatAreTooLong) {
  ASSERT_NO_FATAL_FAILURE(ServeWith({}));
  const FileDescriptor file = MakeFile(kLength);
  const auto requester = NewRequester();
  for (const uint32_t length : {0u, FileReads::kMostPieceBytes - kHeader + 1}) {
    EXPECT_EQ(reads->Start(*requester, file.get(), 0, kHeader, length).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
  EXPECT_TRUE(HasNothing());
}

// Nobody else says when the heap has room again.
TEST_F(FileReadsTest, shouldWakeARequesterThatFoundTheHeapFull) {
  ASSERT_NO_FATAL_FAILURE(ServeWith({}));
  std::vector<Buffer> taken;
  for (auto buffer = shard->heap().AllocateScratch(kLength); buffer.ok();
       buffer = shard->heap().AllocateScratch(kLength)) {
    taken.push_back(*buffer);
  }
  const FileDescriptor file = MakeFile(kLength);
  int woken = 0;
  const auto requester = NewRequester([&] { ++woken; });
  EXPECT_TRUE(absl::IsResourceExhausted(
      reads->Start(*requester, file.get(), 0, kHeader, kLength).status()));
  EXPECT_TRUE(Until([&] { return woken > 0; }));
  for (const Buffer& buffer : taken) EXPECT_EQ(shard->heap().Free(buffer), absl::OkStatus());
  reads->Release(StartOne(*requester, file.get()));
}

TEST_F(FileReadsTest, shouldLetRequestersTakeTurns) {
  ASSERT_NO_FATAL_FAILURE(ServeWith({.most_reads = 1}));
  const FileDescriptor file = MakeFile(kLength);
  std::vector<int> turns;
  std::vector<std::unique_ptr<FileRequester>> requesters;
  // Each takes as much as it gets.
  const auto take = [&](int number) {
    for (;;) {
      const auto piece = reads->Start(*requesters[number], file.get(), 0, kHeader, kLength);
      if (!piece.ok()) return;
      turns.push_back(number);
      reads->Submit(*requesters[number]);
      reads->Release(*piece);
      if (turns.size() >= 9) return;
    }
  };
  for (int i = 0; i < 3; ++i) requesters.push_back(NewRequester([&, i] { take(i); }));
  const FileReads::Piece piece = StartOne(*requesters[0], file.get());
  for (int i = 0; i < 3; ++i) take(i);
  EXPECT_TRUE(turns.empty());
  reads->Release(piece);
  EXPECT_TRUE(Until([&] { return turns.size() >= 9; }));
  turns.resize(9);
  EXPECT_THAT(turns, ElementsAre(0, 1, 2, 0, 1, 2, 0, 1, 2));
}

// The one that has gone was the next one, and no piece is given back for the other one.
TEST_F(FileReadsTest, shouldNotLetOthersWaitForARequesterThatHasGone) {
  ASSERT_NO_FATAL_FAILURE(ServeWith({.most_bytes = FileReads::kMostPieceBytes}));
  const FileDescriptor file = MakeFile(kLength);
  const auto holder = NewRequester();
  const FileReads::Piece held = StartOne(*holder, file.get(), 0, kLength);
  int woken = 0;
  auto large = NewRequester();
  const auto small = NewRequester([&] { ++woken; });
  const uint32_t longest = FileReads::kMostPieceBytes - kHeader;
  EXPECT_FALSE(reads->Start(*large, file.get(), 0, kHeader, longest).ok());
  EXPECT_FALSE(reads->Start(*small, file.get(), 0, kHeader, kLength).ok());
  large.reset();
  EXPECT_TRUE(Until([&] { return woken > 0; }));
  reads->Release(StartOne(*small, file.get()));
  reads->Release(held);
}

TEST_F(FileReadsTest, shouldLeaveNoWatchBehindWhenItIsRefused) {
  ASSERT_NO_FATAL_FAILURE(Serve());
  constexpr int kMostWatches = 256;
  std::vector<FileDescriptor> events;
  for (int i = 0; i < kMostWatches; ++i) {
    events.emplace_back(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  }
  for (int i = 0; i < kMostWatches - 1; ++i) {
    ASSERT_EQ(worker->Watch(events[i].get(), [] {}), absl::OkStatus());
  }
  EXPECT_TRUE(absl::IsResourceExhausted(FileReads::Create(*worker, {}).status()));
  EXPECT_EQ(worker->Watch(events.back().get(), [] {}), absl::OkStatus());
  for (const FileDescriptor& event : events) worker->Unwatch(event.get());
}

TEST_F(FileReadsTest, shouldLetAWokenRequesterEndItselfAndOthers) {
  ASSERT_NO_FATAL_FAILURE(ServeWith({}));
  std::unique_ptr<FileRequester> one, other;
  int woken = 0;
  const auto end_both = [&] {
    ++woken;
    one.reset();
    other.reset();
  };
  one = NewRequester(end_both);
  other = NewRequester(end_both);
  reads->WakeSoon(*one);
  reads->WakeSoon(*other);
  EXPECT_TRUE(Until([&] { return woken > 0; }));
  for (int i = 0; i < 100; ++i) Turn();
  EXPECT_EQ(woken, 1);
}

// The library commits what a wake stages, and before the next one of the shard.
TEST_F(FileReadsTest, shouldRetryAtTheTimeOfTheOneThatWaitsLeast) {
  ASSERT_NO_FATAL_FAILURE(ServeWith({}));
  int woken = 0;
  const auto patient = NewRequester([&] { ++woken; });
  const auto hasty = NewRequester([&] { ++woken; });
  reads->RetryLater(*patient, /*milliseconds=*/999);
  reads->RetryLater(*hasty, /*milliseconds=*/1);
  EXPECT_TRUE(Until([&] { return woken == 2; }));
}

TEST_F(FileReadsTest, shouldCommitBetweenWakes) {
  ASSERT_NO_FATAL_FAILURE(ServeWith({}));
  std::vector<uint8_t> found;
  const auto count = [&] {
    const uint8_t last = shard->state().empty() ? uint8_t{0} : shard->state()[0];
    found.push_back(last);
    const auto next = static_cast<uint8_t>(last + 1);
    EXPECT_EQ(shard->SetShardState({&next, 1}, 1), absl::OkStatus());
  };
  const auto one = NewRequester(count);
  const auto other = NewRequester(count);
  reads->WakeSoon(*one);
  reads->WakeSoon(*other);
  EXPECT_TRUE(Until([&] { return found.size() == 2; }));
  EXPECT_THAT(found, ElementsAre(0, 1));
  EXPECT_TRUE(Until([&] { return shard->state()[0] == 2; }));
}

TEST_F(SlowReadsTest, shouldWakeTheRequesterWhenAReadHasCompleted) {
  ASSERT_NO_FATAL_FAILURE(ServeSlowly());
  if (IsSkipped()) return;
  int woken = 0;
  const auto requester = NewRequester([&] { ++woken; });
  const FileReads::Piece piece = StartOne(*requester, pipe.reading.get());
  reads->Submit(*requester);
  EXPECT_EQ(reads->ProgressOf(piece), Progress::kUnderWay);
  ASSERT_NO_FATAL_FAILURE(Write(0, kLength));
  ASSERT_TRUE(Until([&] { return woken > 0; }));
  EXPECT_EQ(reads->ProgressOf(piece), Progress::kRead);
  ExpectBytes(piece, 0, kLength);
  reads->Release(piece);
}

TEST_F(SlowReadsTest, shouldRepeatShortReads) {
  ASSERT_NO_FATAL_FAILURE(ServeSlowly());
  if (IsSkipped()) return;
  const auto requester = NewRequester();
  const FileReads::Piece piece = StartOne(*requester, pipe.reading.get());
  reads->Submit(*requester);
  for (uint32_t offset = 0; offset < kLength; offset += 1000) {
    EXPECT_EQ(reads->ProgressOf(piece), Progress::kUnderWay);
    ASSERT_NO_FATAL_FAILURE(Write(offset, 1000));
    ASSERT_TRUE(Until([&] {
      return reads->statistics().repeated == offset / 1000 + 1 ||
             reads->ProgressOf(piece) == Progress::kRead;
    }));
  }
  EXPECT_EQ(reads->ProgressOf(piece), Progress::kRead);
  ExpectBytes(piece, 0, kLength);
  reads->Release(piece);
}

TEST_F(SlowReadsTest, shouldSayThatAFileEndsInTheMiddleOfAPiece) {
  ASSERT_NO_FATAL_FAILURE(ServeSlowly());
  if (IsSkipped()) return;
  const auto requester = NewRequester();
  const FileReads::Piece piece = StartOne(*requester, pipe.reading.get());
  reads->Submit(*requester);
  ASSERT_NO_FATAL_FAILURE(Write(0, 1000));
  pipe.writing.Reset();
  ASSERT_TRUE(Until([&] { return reads->ProgressOf(piece) == Progress::kFailed; }));
  EXPECT_EQ(reads->ErrorOf(piece).code(), absl::StatusCode::kOutOfRange);
  reads->Release(piece);
}

TEST_F(SlowReadsTest, shouldEndReadsBeforeAShardIsGivenBack) {
  ASSERT_NO_FATAL_FAILURE(ServeSlowly());
  if (IsSkipped()) return;
  const auto requester = NewRequester();
  const FileReads::Piece piece = StartOne(*requester, pipe.reading.get());
  reads->Submit(*requester);
  uint8_t* const at = shard->heap().At(piece.memory) + kHeader;
  reads->Finish(*shard);
  EXPECT_EQ(reads->ProgressOf(piece), Progress::kFailed);
  EXPECT_EQ(reads->statistics().under_way, 0u);
  EXPECT_EQ(ScratchBytes(), 0u);
  std::fill_n(at, kLength, uint8_t{'x'});
  ASSERT_NO_FATAL_FAILURE(Write(0, kLength));
  EXPECT_EQ(std::count(at, at + kLength, 'x'), kLength);
  reads->Release(piece);  // of memory that is given back
  EXPECT_TRUE(HasNothing());
}

// The requester has gone before its read: the memory is nobody else's until the read is over.
TEST_F(SlowReadsTest, shouldFreeMemoryWhenItsReadIsOver) {
  ASSERT_NO_FATAL_FAILURE(ServeSlowly());
  if (IsSkipped()) return;
  auto requester = NewRequester([] { ADD_FAILURE() << "it is gone"; });
  for (int i = 0; i < 3; ++i) StartOne(*requester, pipe.reading.get());
  reads->Submit(*requester);
  EXPECT_EQ(reads->statistics().under_way, 3u);
  EXPECT_EQ(reads->statistics().pieces, 3u);
  EXPECT_GE(ScratchBytes(), 3u * (kHeader + kLength));
  requester.reset();
  EXPECT_TRUE(Until([&] { return HasNothing(); }));
}

TEST_F(SlowReadsTest, shouldGoOnWithOthersWhenOneShardEnds) {
  ASSERT_NO_FATAL_FAILURE(ServeSlowly());
  if (IsSkipped()) return;
  const auto requester = NewRequester();
  StartOne(*requester, pipe.reading.get());
  reads->Submit(*requester);
  reads->Finish(*shard);
  const FileDescriptor file = MakeFile(kLength);
  const FileReads::Piece piece = StartOne(*requester, file.get());
  reads->Submit(*requester);
  ASSERT_TRUE(Until([&] { return reads->ProgressOf(piece) == Progress::kRead; }));
  ExpectBytes(piece, 0, kLength);
}

TEST_F(SlowReadsTest, shouldOutliveItsWorker) {
  ASSERT_NO_FATAL_FAILURE(ServeSlowly());
  if (IsSkipped()) return;
  auto requester = NewRequester();
  StartOne(*requester, pipe.reading.get());
  reads->Submit(*requester);
  Remove(worker);
  EXPECT_EQ(reads->statistics().under_way, 0u);
  requester.reset();
  reads.reset();
}

// Nobody is there to whom the shard could be released.
TEST_F(SlowReadsTest, shouldEndBeforeTheWorkerWhoseKeeperIsGone) {
  ASSERT_NO_FATAL_FAILURE(ServeSlowly());
  if (IsSkipped()) return;
  service->on_lost = [this](Shard& lost) { reads->Finish(lost); };
  auto requester = NewRequester();
  StartOne(*requester, pipe.reading.get());
  reads->Submit(*requester);
  keeper.Stop();
  EXPECT_TRUE(Until([&] { return !poll_status.ok(); }));
  EXPECT_THAT(service->calls, ElementsAre("adopt"));
  Remove(worker);
  EXPECT_THAT(service->calls, ElementsAre("adopt", "lost"));
  EXPECT_EQ(reads->statistics().under_way, 0u);
  requester.reset();
  reads.reset();
}

}  // namespace
}  // namespace baton
