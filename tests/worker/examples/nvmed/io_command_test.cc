// I/O commands: what is refused before anything is done, what is done, and how it may fail.
#include "worker/examples/nvmed/io_command.h"

#include <errno.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton::nvmed {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using WorkKind = IoWork::Kind;

constexpr uint64_t kBlocks = 1000;

// Notes each call, and fails it when it is asked to.
class FakeBacking final : public Backing {
 public:
  uint64_t bytes() const override { return kBlocks * 4096; }
  bool read_only() const override { return read_only_; }
  bool prompt() const override { return prompt_; }
  bool volatile_cache() const override { return true; }

  int Read(uint64_t offset, absl::Span<uint8_t> data) override {
    return Note(absl::StrCat("read ", offset, "+", data.size()));
  }
  int Write(uint64_t offset, absl::Span<const uint8_t> data, bool through) override {
    return Note(absl::StrCat("write ", offset, "+", data.size(), through ? " through" : ""));
  }
  int Flush() override { return Note("flush"); }
  int WriteZeroes(uint64_t offset, uint64_t length, bool deallocate, bool through) override {
    return Note(absl::StrCat("zero ", offset, "+", length, deallocate ? " deallocate" : "",
                             through ? " through" : ""));
  }
  int Deallocate(uint64_t offset, uint64_t length) override {
    return Note(absl::StrCat("deallocate ", offset, "+", length));
  }

  int Note(std::string call) {
    calls.push_back(std::move(call));
    return calls.size() > successes_ ? error_ : 0;
  }
  void FailAfter(size_t successes, int error) {
    successes_ = calls.size() + successes;
    error_ = error;
  }

  std::vector<std::string> calls;
  bool read_only_ = false;
  bool prompt_ = false;

 private:
  size_t successes_ = SIZE_MAX;
  int error_ = 0;
};

class IoCommandTest : public testing::Test {
 protected:
  IoCommandTest() {
    for (const uint32_t id : {1u, 3u}) {
      Namespace& one = subsystem_.namespaces.emplace_back();
      one.id = id;
      one.block_shift = id == 1 ? 9 : 12;
      one.blocks = kBlocks;
      one.backing = std::make_unique<FakeBacking>();
    }
  }
  FakeBacking& backing(int index) {
    return static_cast<FakeBacking&>(*subsystem_.namespaces[static_cast<size_t>(index)].backing);
  }
  StatusCode Make(const SubmissionEntry& command, IoWork* work) {
    return MakeWork(command, subsystem_, work);
  }
  StatusCode Make(const SubmissionEntry& command) {
    IoWork work;
    return Make(command, &work);
  }
  // Made, and done with as many bytes of data.
  StatusCode Do(const SubmissionEntry& command, absl::Span<uint8_t> data) {
    IoWork work;
    const StatusCode status = Make(command, &work);
    return status == StatusCode::kSuccess ? nvmed::Run(work, data) : status;
  }
  StatusCode Do(const SubmissionEntry& command, size_t bytes) {
    std::vector<uint8_t> data(bytes);
    return Do(command, absl::MakeSpan(data));
  }

  Subsystem subsystem_;
};

SubmissionEntry CommandOf(IoOpcode opcode, uint32_t nsid) {
  SubmissionEntry command = {};
  command.opcode = static_cast<uint8_t>(opcode);
  command.nsid = nsid;
  return command;
}

SubmissionEntry BlocksOf(IoOpcode opcode, uint64_t slba, uint32_t blocks, uint16_t control = 0,
                         uint32_t nsid = 1) {
  SubmissionEntry command = CommandOf(opcode, nsid);
  auto view = ViewOf<BlockCommand>(command);
  view.slba = slba;
  view.nlb = static_cast<uint16_t>(blocks - 1);
  view.control = control;
  std::memcpy(&command, &view, sizeof(command));
  return command;
}

SubmissionEntry Ranges(uint32_t count, uint32_t attributes = kDatasetDeallocate,
                       uint32_t nsid = 1) {
  SubmissionEntry command = CommandOf(IoOpcode::kDatasetManagement, nsid);
  auto view = ViewOf<DatasetManagementCommand>(command);
  view.nr = static_cast<uint8_t>(count - 1);
  view.attributes = attributes;
  std::memcpy(&command, &view, sizeof(command));
  return command;
}

std::vector<uint8_t> DataOf(const std::vector<DatasetRange>& ranges) {
  std::vector<uint8_t> data(ranges.size() * sizeof(DatasetRange));
  std::memcpy(data.data(), ranges.data(), data.size());
  return data;
}

constexpr IoOpcode kWithBlocks[] = {IoOpcode::kRead, IoOpcode::kWrite, IoOpcode::kWriteZeroes};

// ---------------------------------------------------------------- what is asked for

TEST_F(IoCommandTest, shouldAskForTheBytesOfTheBlocks) {
  IoWork work;
  ASSERT_EQ(Make(BlocksOf(IoOpcode::kRead, 5, 3), &work), StatusCode::kSuccess);
  EXPECT_EQ(work.kind, WorkKind::kRead);
  EXPECT_EQ(work.offset, 5u * 512);
  EXPECT_EQ(work.bytes, 3u * 512);
  EXPECT_EQ(work.space, &subsystem_.namespaces[0]);
  EXPECT_FALSE(work.writes());
  EXPECT_FALSE(work.through);

  ASSERT_EQ(Make(BlocksOf(IoOpcode::kWrite, 5, 3, 0, 3), &work), StatusCode::kSuccess);
  EXPECT_EQ(work.kind, WorkKind::kWrite);
  EXPECT_EQ(work.offset, 5u * 4096);
  EXPECT_EQ(work.bytes, 3u * 4096);
  EXPECT_EQ(work.space, &subsystem_.namespaces[1]);
  EXPECT_TRUE(work.writes());
}

TEST_F(IoCommandTest, shouldAskForAllThatACommandMayName) {
  subsystem_.namespaces[0].blocks = 1 << 20;
  IoWork work;
  ASSERT_EQ(Make(BlocksOf(IoOpcode::kWriteZeroes, 7, 65536), &work), StatusCode::kSuccess);
  EXPECT_EQ(work.bytes, 65536u * 512);
}

TEST_F(IoCommandTest, shouldTakeRangesThatEndWhereTheNamespaceEnds) {
  for (const IoOpcode opcode : kWithBlocks) {
    EXPECT_EQ(Make(BlocksOf(opcode, kBlocks - 1, 1)), StatusCode::kSuccess);
    EXPECT_EQ(Make(BlocksOf(opcode, 0, kBlocks)), StatusCode::kSuccess);
    EXPECT_EQ(Make(BlocksOf(opcode, kBlocks - 8, 8)), StatusCode::kSuccess);
  }
}

TEST_F(IoCommandTest, shouldRefuseRangesBeyondTheNamespace) {
  const std::pair<uint64_t, uint32_t> ranges[] = {
      {kBlocks, 1},
      {kBlocks - 1, 2},
      {0, kBlocks + 1},
      {0, 65536},
      {kBlocks + 1, 1},
      {uint64_t{1} << 55, 1},  // whose byte is 0 in 64 bits
      {uint64_t{1} << 52, 1},  // likewise with blocks of 4096
      {UINT64_MAX, 1},
      {UINT64_MAX, 2},
      {UINT64_MAX - 65534, 65536},
      {UINT64_MAX - 1, 65536},
  };
  for (const IoOpcode opcode : kWithBlocks) {
    for (const auto& [slba, blocks] : ranges) {
      for (const uint32_t nsid : {1u, 3u}) {
        EXPECT_EQ(Make(BlocksOf(opcode, slba, blocks, 0, nsid)), StatusCode::kLbaOutOfRange)
            << slba << "+" << blocks;
      }
    }
  }
  EXPECT_THAT(backing(0).calls, IsEmpty());
}

TEST_F(IoCommandTest, shouldRefuseNamespacesThatAreNotThere) {
  for (const uint32_t nsid : {0u, 2u, 4u, kAllNamespaces - 1, kAllNamespaces}) {
    for (const IoOpcode opcode : kWithBlocks) {
      EXPECT_EQ(Make(BlocksOf(opcode, 0, 1, 0, nsid)), StatusCode::kInvalidNamespaceOrFormat);
    }
    EXPECT_EQ(Make(CommandOf(IoOpcode::kFlush, nsid)), StatusCode::kInvalidNamespaceOrFormat);
    EXPECT_EQ(Make(Ranges(1, kDatasetDeallocate, nsid)), StatusCode::kInvalidNamespaceOrFormat);
  }
}

TEST_F(IoCommandTest, shouldRefuseEveryOtherOpcode) {
  for (int opcode = 0; opcode < 256; ++opcode) {
    const auto one = static_cast<IoOpcode>(opcode);
    const bool known = one == IoOpcode::kFlush || one == IoOpcode::kRead ||
                       one == IoOpcode::kWrite || one == IoOpcode::kWriteZeroes ||
                       one == IoOpcode::kDatasetManagement;
    EXPECT_EQ(Make(CommandOf(one, 1)), known ? StatusCode::kSuccess : StatusCode::kInvalidOpcode)
        << opcode;
    // The opcode is told first.
    EXPECT_EQ(Make(CommandOf(one, 0)),
              known ? StatusCode::kInvalidNamespaceOrFormat : StatusCode::kInvalidOpcode);
  }
}

TEST_F(IoCommandTest, shouldRefuseProtectionInformation) {
  for (const IoOpcode opcode : kWithBlocks) {
    for (const uint16_t bit : {0x0400, 0x0800, 0x1000, 0x2000}) {
      EXPECT_EQ(Make(BlocksOf(opcode, 0, 1, bit)), StatusCode::kInvalidField) << bit;
    }
    EXPECT_EQ(Make(BlocksOf(opcode, 0, 1, kBlockLimitedRetry)), StatusCode::kSuccess);
  }
}

TEST_F(IoCommandTest, shouldRefuseToWriteWhatIsReadOnly) {
  backing(0).read_only_ = true;
  EXPECT_EQ(Make(BlocksOf(IoOpcode::kWrite, 0, 1)), StatusCode::kNamespaceWriteProtected);
  EXPECT_EQ(Make(BlocksOf(IoOpcode::kWriteZeroes, 0, 1)), StatusCode::kNamespaceWriteProtected);
  EXPECT_EQ(Make(Ranges(1)), StatusCode::kNamespaceWriteProtected);
  EXPECT_EQ(Make(BlocksOf(IoOpcode::kWrite, kBlocks, 1)), StatusCode::kLbaOutOfRange);
  EXPECT_EQ(Make(BlocksOf(IoOpcode::kRead, 0, 1)), StatusCode::kSuccess);
  EXPECT_EQ(Make(CommandOf(IoOpcode::kFlush, 1)), StatusCode::kSuccess);
  EXPECT_EQ(Make(BlocksOf(IoOpcode::kWrite, 0, 1, 0, 3)), StatusCode::kSuccess);
}

// ---------------------------------------------------------------- what is done

TEST_F(IoCommandTest, shouldDoWhatIsAskedFor) {
  EXPECT_EQ(Do(BlocksOf(IoOpcode::kRead, 2, 4), 2048), StatusCode::kSuccess);
  EXPECT_EQ(Do(BlocksOf(IoOpcode::kWrite, 3, 1), 512), StatusCode::kSuccess);
  EXPECT_EQ(Do(BlocksOf(IoOpcode::kWrite, 3, 1, kBlockForceUnitAccess), 512), StatusCode::kSuccess);
  EXPECT_EQ(Do(CommandOf(IoOpcode::kFlush, 1), 0), StatusCode::kSuccess);
  EXPECT_EQ(Do(BlocksOf(IoOpcode::kWriteZeroes, 5, 6), 0), StatusCode::kSuccess);
  EXPECT_EQ(Do(BlocksOf(IoOpcode::kWriteZeroes, 5, 6, kBlockDeallocate), 0), StatusCode::kSuccess);
  EXPECT_EQ(Do(BlocksOf(IoOpcode::kWriteZeroes, 5, 6, kBlockDeallocate | kBlockForceUnitAccess), 0),
            StatusCode::kSuccess);
  EXPECT_THAT(backing(0).calls,
              ElementsAre("read 1024+2048", "write 1536+512", "write 1536+512 through", "flush",
                          "zero 2560+3072", "zero 2560+3072 deallocate",
                          "zero 2560+3072 deallocate through"));
  EXPECT_THAT(backing(1).calls, IsEmpty());
}

TEST_F(IoCommandTest, shouldDeallocateEachRange) {
  std::vector<uint8_t> data =
      DataOf({{0, 2, 10}, {0xffffffff, 0, 5}, {0, kBlocks, 0}, {0, 0, kBlocks}});
  EXPECT_EQ(Do(Ranges(4, kDatasetDeallocate | kDatasetIntegralRead), absl::MakeSpan(data)),
            StatusCode::kSuccess);
  EXPECT_THAT(backing(0).calls, ElementsAre("deallocate 5120+1024", "deallocate 0+512000"));
  EXPECT_EQ(Do(Ranges(1, kDatasetDeallocate, 3), absl::MakeSpan(data).subspan(0, 16)),
            StatusCode::kSuccess);
  EXPECT_THAT(backing(1).calls, ElementsAre("deallocate 40960+8192"));
}

TEST_F(IoCommandTest, shouldDeallocateAllRangesOrNone) {
  const DatasetRange wrong[] = {{0, 1, kBlocks},
                                {0, 2, kBlocks - 1},
                                {0, 0xffffffff, 0},
                                {0, 1, UINT64_MAX},
                                {0, 0xffffffff, UINT64_MAX - 3},
                                {0, 0, kBlocks + 1}};
  for (const DatasetRange& range : wrong) {
    std::vector<uint8_t> data = DataOf({{0, 1, 0}, {0, 1, 1}, range});
    EXPECT_EQ(Do(Ranges(3), absl::MakeSpan(data)), StatusCode::kLbaOutOfRange) << range.slba;
  }
  EXPECT_THAT(backing(0).calls, IsEmpty());
}

TEST_F(IoCommandTest, shouldTakeHintsForHints) {
  std::vector<uint8_t> data = DataOf({{0, 1, kBlocks}});
  EXPECT_EQ(Do(Ranges(1, kDatasetIntegralRead | kDatasetIntegralWrite), absl::MakeSpan(data)),
            StatusCode::kSuccess);
  EXPECT_THAT(backing(0).calls, IsEmpty());
}

TEST_F(IoCommandTest, shouldDeallocateAsManyRangesAsThereCanBe) {
  std::vector<uint8_t> data = DataOf(std::vector<DatasetRange>(256, {0, 1, 7}));
  EXPECT_EQ(Do(Ranges(256), absl::MakeSpan(data)), StatusCode::kSuccess);
  EXPECT_EQ(backing(0).calls.size(), 256u);
}

// Its thread has others to serve.
TEST_F(IoCommandTest, shouldDeallocateSoMuchOfAPromptBackingAndNoMore) {
  backing(0).prompt_ = true;
  subsystem_.namespaces[0].blocks = 2 * kPromptRangeBlocks;
  std::vector<uint8_t> data = DataOf(std::vector<DatasetRange>(kPromptRanges + 1, {0, 1, 7}));
  EXPECT_EQ(Do(Ranges(kPromptRanges), absl::MakeSpan(data)), StatusCode::kSuccess);
  EXPECT_EQ(backing(0).calls.size(), size_t{kPromptRanges});
  EXPECT_EQ(Do(Ranges(kPromptRanges + 1), absl::MakeSpan(data)),
            StatusCode::kCommandSizeLimitExceeded);
  data = DataOf({{0, kPromptRangeBlocks, 0}, {0, kPromptRangeBlocks + 1, 0}});
  EXPECT_EQ(Do(Ranges(1), absl::MakeSpan(data)), StatusCode::kSuccess);
  EXPECT_EQ(Do(Ranges(2), absl::MakeSpan(data)), StatusCode::kCommandSizeLimitExceeded);
  EXPECT_EQ(backing(0).calls.size(), size_t{kPromptRanges} + 1);
}

TEST_F(IoCommandTest, shouldDoNothingWithFewerDataThanTheCommandHas) {
  EXPECT_EQ(Do(BlocksOf(IoOpcode::kRead, 2, 4), 2047), StatusCode::kInternalError);
  EXPECT_EQ(Do(BlocksOf(IoOpcode::kWrite, 2, 4), 0), StatusCode::kInternalError);
  EXPECT_EQ(Do(Ranges(2), 31), StatusCode::kInternalError);
  EXPECT_EQ(Do(Ranges(1), 0), StatusCode::kInternalError);
  EXPECT_THAT(backing(0).calls, IsEmpty());
}

// More than the command says has no meaning: an SGL may be longer.
TEST_F(IoCommandTest, shouldMoveNoMoreThanTheBlocks) {
  EXPECT_EQ(Do(BlocksOf(IoOpcode::kRead, 0, 1), 4096), StatusCode::kSuccess);
  EXPECT_EQ(Do(BlocksOf(IoOpcode::kWrite, 0, 1), 4096), StatusCode::kSuccess);
  EXPECT_THAT(backing(0).calls, ElementsAre("read 0+512", "write 0+512"));
}

// ---------------------------------------------------------------- how it fails

TEST_F(IoCommandTest, shouldTellWhyItFailed) {
  struct Case {
    int error;
    StatusCode reading, writing;
  };
  const Case cases[] = {
      {EIO, StatusCode::kUnrecoveredReadError, StatusCode::kWriteFault},
      {EREMOTEIO, StatusCode::kUnrecoveredReadError, StatusCode::kWriteFault},
      {ENODATA, StatusCode::kUnrecoveredReadError, StatusCode::kWriteFault},
      {EILSEQ, StatusCode::kUnrecoveredReadError, StatusCode::kWriteFault},
      {ENOSPC, StatusCode::kCapacityExceeded, StatusCode::kCapacityExceeded},
      {EDQUOT, StatusCode::kCapacityExceeded, StatusCode::kCapacityExceeded},
      {EFBIG, StatusCode::kCapacityExceeded, StatusCode::kCapacityExceeded},
      {EROFS, StatusCode::kNamespaceWriteProtected, StatusCode::kNamespaceWriteProtected},
      {EPERM, StatusCode::kNamespaceWriteProtected, StatusCode::kNamespaceWriteProtected},
      {EBADF, StatusCode::kNamespaceWriteProtected, StatusCode::kNamespaceWriteProtected},
      {EINVAL, StatusCode::kInternalError, StatusCode::kInternalError},
      {ENOMEM, StatusCode::kInternalError, StatusCode::kInternalError},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.error);
    backing(0).FailAfter(0, c.error);
    EXPECT_EQ(Do(BlocksOf(IoOpcode::kRead, 0, 1), 512), c.reading);
    EXPECT_EQ(Do(BlocksOf(IoOpcode::kWrite, 0, 1), 512), c.writing);
    EXPECT_EQ(Do(BlocksOf(IoOpcode::kWriteZeroes, 0, 1), 0), c.writing);
    EXPECT_EQ(Do(CommandOf(IoOpcode::kFlush, 1), 0), c.writing);
    std::vector<uint8_t> data = DataOf({{0, 1, 0}});
    EXPECT_EQ(Do(Ranges(1), absl::MakeSpan(data)), c.writing);
  }
}

TEST_F(IoCommandTest, shouldStopAtTheFirstRangeThatFails) {
  backing(0).FailAfter(1, EIO);
  std::vector<uint8_t> data = DataOf({{0, 1, 0}, {0, 1, 1}, {0, 1, 2}});
  EXPECT_EQ(Do(Ranges(3), absl::MakeSpan(data)), StatusCode::kWriteFault);
  EXPECT_THAT(backing(0).calls, ElementsAre("deallocate 0+512", "deallocate 512+512"));
}

TEST_F(IoCommandTest, shouldSayWhatIsWorthAnotherTry) {
  for (const StatusCode status :
       {StatusCode::kSuccess, StatusCode::kInternalError, StatusCode::kNamespaceNotReady,
        StatusCode::kCommandInterrupted, StatusCode::kConnectControllerBusy}) {
    EXPECT_FALSE(IsLasting(status)) << static_cast<int>(status);
  }
  for (const StatusCode status :
       {StatusCode::kInvalidOpcode, StatusCode::kInvalidField, StatusCode::kLbaOutOfRange,
        StatusCode::kCapacityExceeded, StatusCode::kNamespaceWriteProtected,
        StatusCode::kWriteFault, StatusCode::kUnrecoveredReadError,
        StatusCode::kInvalidNamespaceOrFormat, StatusCode::kConnectInvalidHost,
        StatusCode::kCommandSequenceError}) {
    EXPECT_TRUE(IsLasting(status)) << static_cast<int>(status);
  }
}

}  // namespace
}  // namespace baton::nvmed
