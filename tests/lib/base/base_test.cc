#include <elf.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "lib/base/file_descriptor.h"
#include "lib/base/fork_mark.h"
#include "lib/base/latency_histogram.h"
#include "lib/base/process_limits.h"
#include "lib/base/release_note.h"
#include "lib/base/status.h"
#include "lib/base/utf8.h"

namespace baton {
namespace {

bool IsOpen(int fd) { return fcntl(fd, F_GETFD) >= 0; }

int NewDescriptor() { return open("/dev/null", O_RDONLY | O_CLOEXEC); }

TEST(FileDescriptorTest, shouldCloseAtItsEnd) {
  const int fd = NewDescriptor();
  { const FileDescriptor owner(fd); }
  EXPECT_FALSE(IsOpen(fd));
}

TEST(FileDescriptorTest, shouldMoveItsDescriptor) {
  FileDescriptor first(NewDescriptor());
  const int fd = first.get();
  FileDescriptor second(std::move(first));
  EXPECT_FALSE(first);  // NOLINT(bugprone-use-after-move): it is empty then
  EXPECT_EQ(second.get(), fd);
  FileDescriptor third(NewDescriptor());
  const int replaced = third.get();
  third = std::move(second);
  EXPECT_EQ(third.get(), fd);
  EXPECT_FALSE(IsOpen(replaced));
  EXPECT_TRUE(IsOpen(fd));
}

TEST(FileDescriptorTest, shouldSurviveMovingToItself) {
  FileDescriptor owner(NewDescriptor());
  FileDescriptor& same = owner;
  owner = std::move(same);
  EXPECT_TRUE(IsOpen(owner.get()));
}

TEST(FileDescriptorTest, shouldNotCloseWhatItReleased) {
  FileDescriptor owner(NewDescriptor());
  const int fd = owner.Release();
  EXPECT_FALSE(owner);
  EXPECT_TRUE(IsOpen(fd));
  close(fd);
}

TEST(ForkMarkTest, shouldTellAProcessFromItsChildrenAndTheirs) {
  const ForkMark mark = ForkMark::Create().value();
  EXPECT_TRUE(mark.IsOurs());
  const pid_t child = fork();
  if (child == 0) {
    if (mark.IsOurs()) _exit(1);
    const pid_t grandchild = fork();
    if (grandchild == 0) _exit(mark.IsOurs() ? 2 : 0);
    int status = 0;
    waitpid(grandchild, &status, 0);
    _exit(WEXITSTATUS(status));
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(mark.IsOurs());
}

TEST(ForkMarkTest, shouldBeTheChildsOwnWhenThatCreatesOne) {
  const ForkMark mark = ForkMark::Create().value();
  const pid_t child = fork();
  if (child == 0) _exit(ForkMark::Create().value().IsOurs() ? 0 : 1);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(LatencyHistogramTest, shouldBeEmptyAtFirst) {
  const LatencyHistogram histogram;
  EXPECT_EQ(histogram.count(), 0u);
  EXPECT_EQ(histogram.max(), 0u);
  EXPECT_EQ(histogram.Quantile(0.5), 0u);
}

TEST(LatencyHistogramTest, shouldBeExactForSmallValues) {
  LatencyHistogram histogram;
  for (uint64_t i = 0; i < 32; ++i) histogram.Record(i);
  EXPECT_EQ(histogram.Quantile(0), 0u);
  EXPECT_EQ(histogram.Quantile(0.5), 15u);
  EXPECT_EQ(histogram.Quantile(1), 31u);
}

TEST(LatencyHistogramTest, shouldBeWithinThreePercentOverTheWholeRange) {
  for (uint64_t value = 1; value < uint64_t{1} << 62; value = value * 5 / 3 + 1) {
    LatencyHistogram histogram;
    histogram.Record(value);
    histogram.Record(UINT64_MAX);  // so that the maximum does not cut the bucket
    const uint64_t quantile = histogram.Quantile(0);
    EXPECT_GE(quantile, value);
    EXPECT_LE(static_cast<double>(quantile), static_cast<double>(value) * 1.032) << value;
  }
}

TEST(LatencyHistogramTest, shouldCountWhatIsNoLonger) {
  LatencyHistogram histogram;
  for (const uint64_t value : {10u, 31u, 1'000u, 1'000'000u}) histogram.Record(value);
  EXPECT_EQ(histogram.sum(), 1'001'041u);
  EXPECT_EQ(histogram.CountUpTo(9), 0u);
  EXPECT_EQ(histogram.CountUpTo(10), 1u);
  EXPECT_EQ(histogram.CountUpTo(500), 2u);
  EXPECT_EQ(histogram.CountUpTo(1'100), 3u);
  EXPECT_EQ(histogram.CountUpTo(1'000'000), 4u);  // the maximum, in the middle of its bucket
  EXPECT_EQ(histogram.CountUpTo(UINT64_MAX), 4u);
  LatencyHistogram sum;
  sum.Merge(histogram);
  sum.Merge(histogram);
  EXPECT_EQ(sum.sum(), 2'002'082u);
  EXPECT_EQ(sum.CountUpTo(500), 4u);
}

TEST(LatencyHistogramTest, shouldNeverExceedTheMaximum) {
  LatencyHistogram histogram;
  histogram.Record(1'000'000);
  EXPECT_EQ(histogram.Quantile(0.5), 1'000'000u);
  EXPECT_EQ(histogram.max(), 1'000'000u);
  histogram.Record(UINT64_MAX);
  EXPECT_EQ(histogram.Quantile(1), UINT64_MAX);
}

TEST(LatencyHistogramTest, shouldOrderQuantiles) {
  LatencyHistogram histogram;
  for (uint64_t i = 1; i <= 1000; ++i) histogram.Record(i * 1000);
  EXPECT_NEAR(static_cast<double>(histogram.Quantile(0.5)), 500'000, 16'000);
  EXPECT_NEAR(static_cast<double>(histogram.Quantile(0.99)), 990'000, 31'000);
  EXPECT_EQ(histogram.Quantile(1), 1'000'000u);
}

TEST(LatencyHistogramTest, shouldMergeAsIfRecordedTogether) {
  LatencyHistogram one, other, both;
  for (uint64_t i = 1; i <= 100; ++i) {
    (i % 3 == 0 ? one : other).Record(i * 777);
    both.Record(i * 777);
  }
  one.Merge(other);
  EXPECT_EQ(one.count(), both.count());
  EXPECT_EQ(one.max(), both.max());
  for (double quantile = 0; quantile <= 1; quantile += 0.1) {
    EXPECT_EQ(one.Quantile(quantile), both.Quantile(quantile));
  }
}

TEST(ValidUtf8, shouldKeepWhatIsValid) {
  for (const std::string text : {"", "disk full", "größer", "€", "\xf0\x9f\x94\xa5"}) {
    EXPECT_EQ(ValidUtf8(text, 256), text);
  }
}

TEST(ValidUtf8, shouldReplaceEachByteThatIsNot) {
  EXPECT_EQ(ValidUtf8("a\xff"
                      "b",
                      256),
            "a?b");
  EXPECT_EQ(ValidUtf8("\xc3", 256), "?");                 // cut off
  EXPECT_EQ(ValidUtf8("\xc3(", 256), "?(");               // no continuation
  EXPECT_EQ(ValidUtf8("\xc0\xaf", 256), "??");            // longer than needed
  EXPECT_EQ(ValidUtf8("\xe0\x80\xaf", 256), "???");       // likewise
  EXPECT_EQ(ValidUtf8("\xed\xa0\x80", 256), "???");       // a surrogate
  EXPECT_EQ(ValidUtf8("\xf4\x90\x80\x80", 256), "????");  // beyond the last code point
}

TEST(IsUtf8, shouldTellTextFromBytes) {
  EXPECT_TRUE(IsUtf8(""));
  EXPECT_TRUE(IsUtf8("größer"));
  EXPECT_FALSE(IsUtf8("a\xff"));
  EXPECT_FALSE(IsUtf8("\xc3"));
}

TEST(ValidUtf8, shouldCutBetweenCharacters) {
  EXPECT_EQ(ValidUtf8("abc", 2), "ab");
  EXPECT_EQ(ValidUtf8("a\u00e4", 2), "a");
  EXPECT_EQ(ValidUtf8("a\u00e4", 3), "a\u00e4");
}

constexpr uint64_t kMebibyte = 1 << 20;

// A child takes this limit and gives up its capabilities. It prints what CheckMemlockLimit says,
// and ends with 0 when that allows `bytes`.
[[noreturn]] void CheckAsAUser(rlimit limit, uint64_t bytes) {
  if (setrlimit(RLIMIT_MEMLOCK, &limit) != 0) _exit(3);
  __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3] = {};
  if (syscall(SYS_capset, &header, none) != 0) _exit(3);
  RaiseMemlockLimit();
  const absl::Status status = CheckMemlockLimit(bytes);
  std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  _exit(status.ok() ? 0 : 1);
}

TEST(MemlockTest, shouldSayWhatIsThereWhatIsNeededAndWhatToDo) {
  EXPECT_EXIT(CheckAsAUser({kMebibyte, kMebibyte}, 3 * kMebibyte / 2), ::testing::ExitedWithCode(1),
              "RLIMIT_MEMLOCK is 1 MiB, 2 MiB needed to register memory: set "
              "LimitMEMLOCK=infinity in batond's unit, or ulimit -l");
}

TEST(MemlockTest, shouldUseWhatTheHardLimitAllows) {
  EXPECT_EXIT(CheckAsAUser({kMebibyte, 2 * kMebibyte}, 2 * kMebibyte), ::testing::ExitedWithCode(0),
              "");
  EXPECT_EXIT(CheckAsAUser({kMebibyte, 2 * kMebibyte}, 2 * kMebibyte + 1),
              ::testing::ExitedWithCode(1), "RLIMIT_MEMLOCK is 2 MiB, 3 MiB needed");
}

TEST(ErrnoStatusTest, shouldSayWhatFailedAndWhy) {
  EXPECT_EQ(ErrnoStatus(ENOENT, "open /a").message(),
            "open /a: No such file or directory (errno 2)");
}

TEST(ErrnoStatusTest, shouldChooseTheCodeThatCallersActOn) {
  using absl::StatusCode;
  const struct {
    int error;
    StatusCode code;
  } kCases[] = {{ENOENT, StatusCode::kNotFound},
                {EEXIST, StatusCode::kAlreadyExists},
                {EADDRINUSE, StatusCode::kAlreadyExists},
                {EACCES, StatusCode::kPermissionDenied},
                {EPERM, StatusCode::kPermissionDenied},
                {ENOMEM, StatusCode::kResourceExhausted},
                {ENOSPC, StatusCode::kResourceExhausted},
                {EMFILE, StatusCode::kResourceExhausted},
                {ENFILE, StatusCode::kResourceExhausted},
                {ENOBUFS, StatusCode::kResourceExhausted},
                {ETOOMANYREFS, StatusCode::kResourceExhausted},
                {EINVAL, StatusCode::kInvalidArgument},
                {ENAMETOOLONG, StatusCode::kInvalidArgument},
                {ETIMEDOUT, StatusCode::kDeadlineExceeded},
                {ECONNREFUSED, StatusCode::kUnavailable},
                {ECONNRESET, StatusCode::kUnavailable},
                {EPIPE, StatusCode::kUnavailable},
                {ENETUNREACH, StatusCode::kUnavailable},
                {EHOSTUNREACH, StatusCode::kUnavailable},
                {EIO, StatusCode::kInternal}};
  for (const auto& item : kCases) EXPECT_EQ(ErrnoStatus(item.error, "x").code(), item.code);
}

absl::StatusOr<int> Half(int value) {
  if (value % 2 != 0) return absl::InvalidArgumentError("odd");
  return value / 2;
}

absl::StatusOr<int> Quarter(int value) {
  BATON_ASSIGN_OR_RETURN(const int half, Half(value));
  BATON_ASSIGN_OR_RETURN(const int quarter, Half(half));
  BATON_RETURN_IF_ERROR(absl::OkStatus());
  return quarter;
}

TEST(StatusMacrosTest, shouldPassValuesOnAndErrorsUp) {
  EXPECT_EQ(Quarter(12).value(), 3);
  EXPECT_EQ(Quarter(6).status().message(), "odd");
}

// A file with one part of notes, as a hostile package may have it.
class ReleaseNoteTest : public ::testing::Test {
 protected:
  void Add(uint32_t name_bytes, uint32_t release_bytes, const std::string& content) {
    const Elf64_Nhdr head = {name_bytes, release_bytes, 1};
    notes_.append(reinterpret_cast<const char*>(&head), sizeof(head));
    notes_.append(content);
  }
  std::string Read(uint64_t claimed_bytes = 0) const {
    Elf64_Ehdr head = {};
    std::memcpy(head.e_ident, ELFMAG, SELFMAG);
    head.e_ident[EI_CLASS] = ELFCLASS64;
    head.e_phoff = sizeof(head);
    head.e_phentsize = sizeof(Elf64_Phdr);
    head.e_phnum = 1;
    Elf64_Phdr part = {};
    part.p_type = PT_NOTE;
    part.p_offset = sizeof(head) + sizeof(part);
    part.p_filesz = claimed_bytes == 0 ? notes_.size() : claimed_bytes;
    std::string file(reinterpret_cast<const char*>(&head), sizeof(head));
    file.append(reinterpret_cast<const char*>(&part), sizeof(part));
    return ReleaseOf(file + notes_);
  }
  static std::string ReleaseOf(const std::string& content) {
    const FileDescriptor file(memfd_create("program", MFD_CLOEXEC));
    EXPECT_EQ(write(file.get(), content.data(), content.size()), std::ssize(content));
    return ReleaseOfFile(file.get()).value_or("none");
  }

  std::string notes_;
};

const std::string kBatonNote(
    "Baton\0\0\0"
    "0.2.0\0\0\0",
    16);

TEST_F(ReleaseNoteTest, shouldTellTheReleaseAmongOtherNotes) {
  Add(4, 4, std::string("GNU\0abcd", 8));
  Add(6, 6, kBatonNote);
  EXPECT_EQ(Read(), "0.2.0");
}

TEST_F(ReleaseNoteTest, shouldNotTellItOfWhatIsNoProgram) {
  EXPECT_EQ(ReleaseOf(""), "none");
  EXPECT_EQ(ReleaseOf("#!/bin/sh\nexit 3\n"), "none");
}

TEST_F(ReleaseNoteTest, shouldReadNoFurtherThanTheFile) {
  Add(6, 6, kBatonNote);
  EXPECT_EQ(Read(1 << 10), "none");
  EXPECT_EQ(Read(UINT64_MAX), "none");
  notes_.clear();
  Add(6, UINT32_MAX, kBatonNote);
  EXPECT_EQ(Read(), "none");
  notes_.clear();
  Add(UINT32_MAX, 6, kBatonNote);
  EXPECT_EQ(Read(), "none");
}

}  // namespace
}  // namespace baton
