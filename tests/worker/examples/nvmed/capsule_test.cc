// Capsules: as Linux's host sends them, and every refusal.
#include "worker/examples/nvmed/capsule.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/examples/nvmed/hex.h"

namespace baton::nvmed {
namespace {

using DataKind = DataPointer::Kind;

constexpr CapsuleLimits kAdmin = {true, 0, 128 << 10};
constexpr CapsuleLimits kIo = {false, 8192, 128 << 10};

// In a block of its own length, so that whatever is read beyond it is seen by the sanitizer.
absl::StatusOr<Capsule> Parse(const std::vector<uint8_t>& bytes, const CapsuleLimits& limits) {
  const auto exact = std::make_unique<uint8_t[]>(bytes.size());
  std::copy(bytes.begin(), bytes.end(), exact.get());
  return ParseCapsule({exact.get(), bytes.size()}, limits);
}

// A command with this data pointer, and `data_bytes` behind it.
std::vector<uint8_t> CapsuleOf(uint8_t opcode, const SglDescriptor& sgl, size_t data_bytes = 0) {
  SubmissionEntry command = {};
  command.opcode = opcode;
  command.flags = static_cast<uint8_t>(Psdt::kSglContiguousMetadata) << kPsdtShift;
  command.cid = 7;
  command.sgl1 = sgl;
  std::vector<uint8_t> bytes = ToBytes(command);
  bytes.resize(bytes.size() + data_bytes);
  return bytes;
}
std::vector<uint8_t> CapsuleOf(IoOpcode opcode, const SglDescriptor& sgl, size_t data_bytes = 0) {
  return CapsuleOf(static_cast<uint8_t>(opcode), sgl, data_bytes);
}

void ExpectRefusal(const std::vector<uint8_t>& bytes, const CapsuleLimits& limits,
                   StatusCode status) {
  const auto capsule = Parse(bytes, limits);
  ASSERT_TRUE(capsule.ok()) << capsule.status();
  EXPECT_EQ(capsule->status, status) << std::hex << static_cast<uint16_t>(capsule->status);
  EXPECT_EQ(capsule->data.kind, DataKind::kNone);
  EXPECT_EQ(capsule->data.length, 0u);
  EXPECT_EQ(capsule->command.cid, bytes[2] | bytes[3] << 8);  // it can be answered
}

Capsule Accept(const std::vector<uint8_t>& bytes, const CapsuleLimits& limits) {
  const auto capsule = Parse(bytes, limits);
  EXPECT_TRUE(capsule.ok()) << capsule.status();
  EXPECT_EQ(capsule->status, StatusCode::kSuccess) << static_cast<uint16_t>(capsule->status);
  return *capsule;
}

// --- What Linux's host sends
// ----------------------------------------------------------------------

TEST(CapsuleTest, shouldTakeConnectOfTheAdminQueue) {
  const Capsule capsule = Accept(Hex("7f 40 1e 00 01 00 00 00  00 00 00 00 00 00 00 00"
                                     "00 00 00 00 00 00 00 00  00 c4 05 06 00 00 00 00"
                                     "00 04 00 0d 01 00 00 4f  00 00 00 00 1f 00 00 00"
                                     "88 13 00 00 00 00 00 00  00 00 00 00 00 00 00 00"),
                                 kAdmin);
  EXPECT_EQ(FabricsTypeOf(capsule.command), FabricsType::kConnect);
  EXPECT_EQ(capsule.command.cid, 0x1e);
  EXPECT_EQ(capsule.data.kind, DataKind::kKeyed);
  EXPECT_EQ(capsule.data.length, 1024u);
  EXPECT_EQ(capsule.data.address, 0x0605c400u);
  EXPECT_EQ(capsule.data.key, 0x0000010du);
  EXPECT_TRUE(capsule.data.invalidate_key);
  EXPECT_EQ(DirectionOf(capsule.command), DataDirection::kToController);
  EXPECT_EQ(DataLength(capsule.command, true, 0), 1024u);
  EXPECT_EQ(ViewOf<ConnectCommand>(capsule.command).kato, 5000u);
}

TEST(CapsuleTest, shouldTakeConnectOfAnIoQueueInItsCapsule) {
  std::vector<uint8_t> bytes =
      Hex("7f 40 00 00 01 00 00 00  00 00 00 00 00 00 00 00"
          "00 00 00 00 00 00 00 00  00 00 00 00 00 00 00 00"
          "00 04 00 00 00 00 00 01  00 00 01 00 7f 00 00 00"
          "00 00 00 00 00 00 00 00  00 00 00 00 00 00 00 00");
  bytes.resize(bytes.size() + sizeof(ConnectData));
  const Capsule capsule = Accept(bytes, kIo);
  EXPECT_EQ(capsule.data.kind, DataKind::kInCapsule);
  EXPECT_EQ(capsule.data.offset, 64u);
  EXPECT_EQ(capsule.data.length, 1024u);
  EXPECT_FALSE(capsule.data.invalidate_key);
}

TEST(CapsuleTest, shouldTakeIdentify) {
  const Capsule capsule = Accept(Hex("06 40 0c 00 00 00 00 00  00 00 00 00 00 00 00 00"
                                     "00 00 00 00 00 00 00 00  00 10 00 00 80 ff ff ff"
                                     "00 10 00 02 01 00 00 4f  01 00 00 00 00 00 00 00"
                                     "00 00 00 00 00 00 00 00  00 00 00 00 00 00 00 00"),
                                 kAdmin);
  EXPECT_EQ(capsule.data.kind, DataKind::kKeyed);
  EXPECT_EQ(capsule.data.length, 4096u);
  EXPECT_EQ(capsule.data.address, 0xffffff8000001000u);
  EXPECT_EQ(DirectionOf(capsule.command), DataDirection::kToHost);
  EXPECT_EQ(DataLength(capsule.command, true, 0), 4096u);
}

TEST(CapsuleTest, shouldTakeAWriteInItsCapsule) {
  std::vector<uint8_t> bytes =
      Hex("01 40 05 00 01 00 00 00  00 00 00 00 00 00 00 00"
          "00 00 00 00 00 00 00 00  00 00 00 00 00 00 00 00"
          "00 10 00 00 00 00 00 01  00 08 00 00 00 00 00 00"
          "07 00 00 00 00 00 00 00  00 00 00 00 00 00 00 00");
  bytes.resize(64 + 4096);
  const Capsule capsule = Accept(bytes, kIo);
  EXPECT_EQ(capsule.data.kind, DataKind::kInCapsule);
  EXPECT_EQ(capsule.data.offset, 64u);
  EXPECT_EQ(capsule.data.length, 4096u);
  EXPECT_EQ(DataLength(capsule.command, false, 9), 4096u);
  EXPECT_EQ(CheckDataLength(capsule.data, 4096, kIo), StatusCode::kSuccess);
  EXPECT_EQ(ViewOf<BlockCommand>(capsule.command).slba, 2048u);
}

TEST(CapsuleTest, shouldTakeDeallocationOfOneRangeInAPageOfThem) {
  std::vector<uint8_t> bytes =
      Hex("09 40 05 00 01 00 00 00  00 00 00 00 00 00 00 00"
          "00 00 00 00 00 00 00 00  00 00 00 00 00 00 00 00"
          "00 10 00 00 00 00 00 01  00 00 00 00 04 00 00 00"
          "00 00 00 00 00 00 00 00  00 00 00 00 00 00 00 00");
  bytes.resize(64 + 4096);
  const Capsule capsule = Accept(bytes, kIo);
  EXPECT_EQ(DataLength(capsule.command, false, 9), 16u);
  EXPECT_EQ(CheckDataLength(capsule.data, 16, kIo), StatusCode::kSuccess);
}

TEST(CapsuleTest, shouldFindNoDataInWhatHasNone) {
  // The host fills the data pointer with a keyed block of length 0.
  const std::string middle =
      "00 00 00 00 00 00 00 00  00 00 00 00 00 00 00 00"
      "00 00 00 00 00 00 00 00  00 00 00 00 00 00 00 40";
  struct Case {
    std::string begin, end;
    const CapsuleLimits& limits;
  };
  const Case cases[] = {
      // Property Get of CAP, Property Set of CC.
      {"7f 40 02 00 04 00 00 00", "01 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00", kAdmin},
      {"7f 40 02 00 00 00 00 00", "00 00 00 00 14 00 00 00 01 00 46 00 00 00 00 00", kAdmin},
      // Asynchronous Event Request, Keep Alive, Set Features: number of queues.
      {"0c 40 1f 00 00 00 00 00", "00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00", kAdmin},
      {"18 40 1d 00 00 00 00 00", "00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00", kAdmin},
      {"09 40 0b 00 00 00 00 00", "07 00 00 00 01 00 01 00 00 00 00 00 00 00 00 00", kAdmin},
      // Flush, Write Zeroes.
      {"00 40 0b 00 01 00 00 00", "00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00", kIo},
      {"08 40 0b 00 01 00 00 00", "00 00 00 00 00 00 00 00 ff ff 00 02 00 00 00 00", kIo},
  };
  for (const Case& c : cases) {
    const std::string tail = " 00 00 00 00 00 00 00 00";
    const Capsule capsule = Accept(Hex(absl::StrCat(c.begin, middle, c.end, tail)), c.limits);
    EXPECT_EQ(capsule.data.kind, DataKind::kNone) << c.begin;
    EXPECT_EQ(DataLength(capsule.command, c.limits.admin_queue, 9), 0u) << c.begin;
  }
}

// --- Refusals
// -------------------------------------------------------------------------------------

TEST(CapsuleTest, shouldRefuseWhatIsNoCommand) {
  const std::vector<uint8_t> bytes = CapsuleOf(IoOpcode::kFlush, {});
  for (const size_t length : {0, 1, 16, 63}) {
    const auto capsule =
        Parse({bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(length)}, kIo);
    ASSERT_FALSE(capsule.ok());
    EXPECT_EQ(capsule.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(capsule.status().message()),
                testing::HasSubstr(std::to_string(length) + " bytes"));
  }
  EXPECT_TRUE(Parse(bytes, kIo).ok());
}

TEST(CapsuleTest, shouldRefuseFusedCommands) {
  for (const uint8_t fuse : {1, 2, 3}) {
    std::vector<uint8_t> bytes = CapsuleOf(IoOpcode::kRead, KeyedSgl(0, 512, 1, true));
    bytes[1] |= fuse;
    ExpectRefusal(bytes, kIo, StatusCode::kInvalidField);
  }
}

TEST(CapsuleTest, shouldRefuseDataPointersThatAreNoSgls) {
  std::vector<uint8_t> bytes = CapsuleOf(IoOpcode::kRead, KeyedSgl(0, 512, 1, true));
  for (const uint8_t flags : {0x00, 0xc0}) {
    bytes[1] = flags;
    ExpectRefusal(bytes, kIo, StatusCode::kInvalidField);
  }
  bytes[1] = 0x80;
  EXPECT_EQ(Accept(bytes, kIo).data.kind, DataKind::kKeyed);
}

TEST(CapsuleTest, shouldNotLookAtTheReservedFlagsOfFabricsCommands) {
  std::vector<uint8_t> bytes = CapsuleOf(0x7f, KeyedSgl(0, 1024, 1, false));
  bytes[4] = static_cast<uint8_t>(FabricsType::kConnect);
  for (const int flags : {0x00, 0x03, 0xff}) {
    bytes[1] = static_cast<uint8_t>(flags);
    EXPECT_EQ(Accept(bytes, kAdmin).data.length, 1024u);
  }
}

TEST(CapsuleTest, shouldRefuseOtherTypesOfDescriptors) {
  for (int identifier = 0; identifier < 256; ++identifier) {
    const bool known = identifier == 0x01 || identifier == 0x40 || identifier == 0x4f;
    const int type = identifier >> 4;
    if (known || type == 0x2 || type == 0x3) continue;
    SglDescriptor sgl = KeyedSgl(0, 512, 1, false);
    sgl.identifier = static_cast<uint8_t>(identifier);
    ExpectRefusal(CapsuleOf(IoOpcode::kWrite, sgl, 8192), kIo,
                  StatusCode::kSglDescriptorTypeInvalid);
  }
}

TEST(CapsuleTest, shouldRefuseListsOfDescriptors) {
  for (const SglType type : {SglType::kSegment, SglType::kLastSegment}) {
    for (const SglSubtype subtype : {SglSubtype::kAddress, SglSubtype::kOffset}) {
      SglDescriptor sgl = {0, 16, {}, SglIdentifier(type, subtype)};
      ExpectRefusal(CapsuleOf(IoOpcode::kWrite, sgl, 64), kIo,
                    StatusCode::kSglDescriptorTypeInvalid);
      sgl.length = 32;
      ExpectRefusal(CapsuleOf(IoOpcode::kWrite, sgl, 64), kIo,
                    StatusCode::kInvalidNumberOfSglDescriptors);
      for (const uint32_t length : {0u, 15u, 24u}) {
        sgl.length = length;
        ExpectRefusal(CapsuleOf(IoOpcode::kWrite, sgl, 64), kIo,
                      StatusCode::kInvalidSglSegmentDescriptor);
      }
    }
  }
}

TEST(CapsuleTest, shouldTakeDataUpToTheEndOfTheCapsule) {
  EXPECT_EQ(Accept(CapsuleOf(IoOpcode::kWrite, InCapsuleSgl(0, 8192), 8192), kIo).data.length,
            8192u);
  const DataPointer last =
      Accept(CapsuleOf(IoOpcode::kWrite, InCapsuleSgl(7680, 512), 8192), kIo).data;
  EXPECT_EQ(last.kind, DataKind::kInCapsule);
  EXPECT_EQ(last.offset, 64u + 7680);
  EXPECT_EQ(last.length, 512u);
}

TEST(CapsuleTest, shouldRefuseDataBeyondTheCapsule) {
  struct Case {
    uint64_t offset;
    uint32_t length;
    size_t received;
    StatusCode status;
  };
  const Case cases[] = {
      {8193, 0, 8192, StatusCode::kSglOffsetInvalid},
      {uint64_t{1} << 32, 512, 8192, StatusCode::kSglOffsetInvalid},
      {0xffffffffffffffff, 2, 8192, StatusCode::kSglOffsetInvalid},
      {0xffffffffffffffff, 0xffffffff, 8192, StatusCode::kSglOffsetInvalid},
      {0, 8193, 9000, StatusCode::kDataSglLengthInvalid},
      {8192, 1, 9000, StatusCode::kDataSglLengthInvalid},
      {7681, 512, 8192, StatusCode::kDataSglLengthInvalid},
      {1, 0xffffffff, 8192, StatusCode::kDataSglLengthInvalid},
      // Less has arrived than the capsule may have.
      {0, 512, 511, StatusCode::kDataSglLengthInvalid},
      {512, 512, 1023, StatusCode::kDataSglLengthInvalid},
      {512, 512, 100, StatusCode::kDataSglLengthInvalid},
      {0, 1, 0, StatusCode::kDataSglLengthInvalid},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(testing::Message() << c.offset << "+" << c.length << " of " << c.received);
    ExpectRefusal(CapsuleOf(IoOpcode::kWrite, InCapsuleSgl(c.offset, c.length), c.received), kIo,
                  c.status);
  }
}

TEST(CapsuleTest, shouldRefuseDataInCapsulesOfTheAdminQueue) {
  std::vector<uint8_t> bytes = CapsuleOf(0x7f, InCapsuleSgl(0, 1024), 1024);
  bytes[4] = static_cast<uint8_t>(FabricsType::kConnect);
  ExpectRefusal(bytes, kAdmin, StatusCode::kSglDescriptorTypeInvalid);
}

TEST(CapsuleTest, shouldRefuseToReadIntoTheCapsule) {
  ExpectRefusal(CapsuleOf(IoOpcode::kRead, InCapsuleSgl(0, 512), 512), kIo,
                StatusCode::kInvalidField);
}

TEST(CapsuleTest, shouldRefuseMoreThanOneTransferMayHave) {
  const CapsuleLimits limits = {false, 8192, 4096};
  ExpectRefusal(CapsuleOf(IoOpcode::kRead, KeyedSgl(0, 4097, 1, true)), limits,
                StatusCode::kInvalidField);
  ExpectRefusal(CapsuleOf(IoOpcode::kRead, KeyedSgl(0, 0xffffff, 1, true)), limits,
                StatusCode::kInvalidField);
  ExpectRefusal(CapsuleOf(IoOpcode::kWrite, InCapsuleSgl(0, 4097), 8192), limits,
                StatusCode::kInvalidField);
  EXPECT_EQ(Accept(CapsuleOf(IoOpcode::kRead, KeyedSgl(0, 4096, 1, true)), limits).data.length,
            4096u);
}

TEST(CapsuleTest, shouldNotLookAtThePointerOfWhatIsUnknownOrHasNoData) {
  SglDescriptor broken;
  std::memset(&broken, 0xff, sizeof(broken));
  for (const uint8_t opcode : {0x00, 0x04, 0x08, 0x03, 0x07, 0x0e, 0x91, 0xff}) {
    EXPECT_EQ(Accept(CapsuleOf(opcode, broken), kIo).data.kind, DataKind::kNone) << int{opcode};
  }
}

TEST(CapsuleTest, shouldFindNoDataInAPointerOfLengthZero) {
  EXPECT_EQ(Accept(CapsuleOf(IoOpcode::kRead, KeyedSgl(99, 0, 1, true)), kIo).data.kind,
            DataKind::kNone);
  EXPECT_EQ(Accept(CapsuleOf(IoOpcode::kWrite, InCapsuleSgl(8192, 0), 8192), kIo).data.kind,
            DataKind::kNone);
}

// --- Lengths
// --------------------------------------------------------------------------------------

SubmissionEntry Command(uint8_t opcode, uint32_t cdw10, uint32_t cdw11 = 0, uint32_t cdw12 = 0) {
  SubmissionEntry command = {};
  command.opcode = opcode;
  command.cdw10 = cdw10;
  command.cdw11 = cdw11;
  command.cdw12 = cdw12;
  return command;
}

TEST(CapsuleTest, shouldKnowTheDataOfIoCommands) {
  EXPECT_EQ(DataLength(Command(0x02, 0, 0, 0), false, 9), 512u);
  EXPECT_EQ(DataLength(Command(0x02, 0, 0, 0xffff), false, 12), 65536u * 4096);
  EXPECT_EQ(DataLength(Command(0x01, 0, 0, 7), false, 12), 32768u);
  EXPECT_EQ(DataLength(Command(0x05, 0, 0, 7), false, 9), 4096u);
  EXPECT_EQ(DataLength(Command(0x02, 0, 0, 0xffff), false, 31), uint64_t{65536} << 31);
  EXPECT_EQ(DataLength(Command(0x09, 255), false, 9), 4096u);
  EXPECT_EQ(DataLength(Command(0x09, 0xffffff00), false, 9), 16u);
  EXPECT_EQ(DataLength(Command(0x00, 0), false, 9), 0u);
  EXPECT_EQ(DataLength(Command(0x04, 0, 0, 7), false, 9), 0u);
  EXPECT_EQ(DataLength(Command(0x08, 0, 0, 7), false, 9), 0u);
  for (const uint8_t opcode : {0x03, 0x06, 0x0a, 0x0c, 0x18, 0x80, 0xff}) {
    EXPECT_EQ(DataLength(Command(opcode, 0), false, 9), std::nullopt) << int{opcode};
  }
}

TEST(CapsuleTest, shouldKnowTheDataOfAdminCommands) {
  EXPECT_EQ(DataLength(Command(0x06, 0), true, 0), 4096u);
  EXPECT_EQ(DataLength(Command(0x02, 0), true, 0), 4u);
  EXPECT_EQ(DataLength(Command(0x02, 0x00ff8070), true, 0), 1024u);
  EXPECT_EQ(DataLength(Command(0x02, 0xffff0001, 0xffff), true, 0), uint64_t{1} << 34);
  for (const uint8_t opcode : {0x08, 0x0c, 0x18}) {
    EXPECT_EQ(DataLength(Command(opcode, 0), true, 0), 0u) << int{opcode};
  }
  // The commands of queues do not exist here.
  for (const uint8_t opcode : {0x00, 0x01, 0x04, 0x05, 0x03, 0x10, 0x80, 0xff}) {
    EXPECT_EQ(DataLength(Command(opcode, 0), true, 0), std::nullopt) << int{opcode};
  }
}

TEST(CapsuleTest, shouldKnowTheDataOfFeatures) {
  for (const uint8_t opcode : {0x09, 0x0a}) {
    EXPECT_EQ(DataLength(Command(opcode, 0x07), true, 0), 0u);
    EXPECT_EQ(DataLength(Command(opcode, 0x0b), true, 0), 0u);
    EXPECT_EQ(DataLength(Command(opcode, 0x0f), true, 0), 0u);
    EXPECT_EQ(DataLength(Command(opcode, 0x0e), true, 0), 8u);
    EXPECT_EQ(DataLength(Command(opcode, 0x16), true, 0), 512u);
    EXPECT_EQ(DataLength(Command(opcode, 0x81, 0), true, 0), 8u);
    EXPECT_EQ(DataLength(Command(opcode, 0x81, 1), true, 0), 16u);
    EXPECT_EQ(DataLength(Command(opcode, 0xc0), true, 0), std::nullopt);
  }
  // Get Features of what is supported (SEL 3).
  EXPECT_EQ(DataLength(Command(0x0a, 0x30e), true, 0), 0u);
  EXPECT_EQ(DataLength(Command(0x0a, 0x3c0), true, 0), std::nullopt);
  EXPECT_EQ(DataLength(Command(0x09, 0x30e), true, 0), 8u);
}

TEST(CapsuleTest, shouldKnowTheDataOfFabricsCommandsOnAnyQueue) {
  for (const bool admin : {true, false}) {
    SubmissionEntry command = Command(0x7f, 0, 2048);
    const auto length = [&](uint32_t type) {
      command.nsid = type;
      return DataLength(command, admin, 9);
    };
    EXPECT_EQ(length(0x01), 1024u);
    EXPECT_EQ(length(0x00), 0u);
    EXPECT_EQ(length(0x04), 0u);
    EXPECT_EQ(length(0x08), 0u);
    EXPECT_EQ(length(0x05), 2048u);
    EXPECT_EQ(length(0x06), 2048u);
    EXPECT_EQ(length(0x02), std::nullopt);
    EXPECT_EQ(length(0xff), std::nullopt);
    EXPECT_EQ(length(0xffffff01), 1024u);  // the rest of the dword is reserved
  }
}

TEST(CapsuleTest, shouldTellWhereDataGo) {
  EXPECT_EQ(DirectionOf(Command(0x00, 0)), DataDirection::kNone);
  EXPECT_EQ(DirectionOf(Command(0x01, 0)), DataDirection::kToController);
  EXPECT_EQ(DirectionOf(Command(0x05, 0)), DataDirection::kToController);
  EXPECT_EQ(DirectionOf(Command(0x02, 0)), DataDirection::kToHost);
  EXPECT_EQ(DirectionOf(Command(0x06, 0)), DataDirection::kToHost);
  EXPECT_EQ(DirectionOf(Command(0x03, 0)), DataDirection::kBoth);
  SubmissionEntry fabrics = Command(0x7f, 0);
  EXPECT_EQ(DirectionOf(fabrics), DataDirection::kNone);
  fabrics.nsid = 0x01;
  EXPECT_EQ(DirectionOf(fabrics), DataDirection::kToController);
  fabrics.nsid = 0x06;
  EXPECT_EQ(DirectionOf(fabrics), DataDirection::kToHost);
}

TEST(CapsuleTest, shouldCheckThatThePointerNamesEnough) {
  DataPointer data;
  data.kind = DataKind::kKeyed;
  data.length = 4096;
  EXPECT_EQ(CheckDataLength(data, 4096, kIo), StatusCode::kSuccess);
  EXPECT_EQ(CheckDataLength(data, 512, kIo), StatusCode::kSuccess);
  EXPECT_EQ(CheckDataLength(data, 4097, kIo), StatusCode::kDataSglLengthInvalid);
  EXPECT_EQ(CheckDataLength({}, 1, kIo), StatusCode::kDataSglLengthInvalid);
  EXPECT_EQ(CheckDataLength({}, 0, kIo), StatusCode::kSuccess);
  EXPECT_EQ(CheckDataLength(data, (128 << 10) + 512, kIo), StatusCode::kInvalidField);
  EXPECT_EQ(CheckDataLength(data, uint64_t{1} << 34, kIo), StatusCode::kInvalidField);
}

TEST(CapsuleTest, shouldReadTextsThatEnd) {
  const char text[8] = {'n', 'q', 'n', '.', 'a', 0, 'x', 0};
  EXPECT_EQ(TextOf(text, 5), "nqn.a");
  EXPECT_EQ(TextOf(text, 4), std::nullopt);
  EXPECT_EQ(TextOf({text, 6}, 7), "nqn.a");
  EXPECT_EQ(TextOf({text, 5}, 7), std::nullopt);
  EXPECT_EQ(TextOf({text + 5, 1}, 7), "");
  EXPECT_EQ(TextOf({}, 7), std::nullopt);
}

}  // namespace
}  // namespace baton::nvmed
