// The structures of the wire, against bytes that are laid out as the specifications have them.
#include "worker/examples/nvmed/nvme_spec.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/examples/nvmed/hex.h"

namespace baton::nvmed {
namespace {

using testing::ElementsAreArray;

TEST(NvmeSpecTest, shouldHaveTheCommandsOfSubmissionEntries) {
  const auto entry = FromHex<SubmissionEntry>(
      "02 41 34 12  01 02 03 04  05 06 07 08  09 0a 0b 0c"
      "10 11 12 13 14 15 16 17  20 21 22 23 24 25 26 27"
      "30 31 32 33 34 35 36 4f  40 00 00 00 41 00 00 00"
      "42 00 00 00 43 00 00 00  44 00 00 00 45 00 00 00");
  EXPECT_EQ(entry.opcode, 2);
  EXPECT_EQ(entry.flags & kFuseMask, 1);
  EXPECT_EQ(PsdtOf(entry), Psdt::kSglContiguousMetadata);
  EXPECT_EQ(entry.cid, 0x1234);
  EXPECT_EQ(entry.nsid, 0x04030201u);
  EXPECT_EQ(entry.cdw2, 0x08070605u);
  EXPECT_EQ(entry.mptr, 0x1716151413121110u);
  EXPECT_EQ(entry.sgl1.address, 0x2726252423222120u);
  EXPECT_EQ(entry.sgl1.length, 0x33323130u);
  EXPECT_EQ(KeyedLengthOf(entry.sgl1), 0x323130u);
  EXPECT_EQ(KeyOf(entry.sgl1), 0x36353433u);
  EXPECT_EQ(TypeOf(entry.sgl1), SglType::kKeyedDataBlock);
  EXPECT_EQ(SubtypeOf(entry.sgl1), SglSubtype::kInvalidateKey);
  EXPECT_EQ(entry.cdw10, 0x40u);
  EXPECT_EQ(entry.cdw15, 0x45u);
}

TEST(NvmeSpecTest, shouldWriteSglDescriptors) {
  EXPECT_THAT(ToBytes(KeyedSgl(0x0102030405060708, 0xabcdef, 0x11223344, true)),
              ElementsAreArray(Hex("08 07 06 05 04 03 02 01  ef cd ab 44 33 22 11 4f")));
  EXPECT_THAT(ToBytes(KeyedSgl(1, 2, 3, false)),
              ElementsAreArray(Hex("01 00 00 00 00 00 00 00  02 00 00 03 00 00 00 40")));
  EXPECT_THAT(ToBytes(InCapsuleSgl(0x10, 0x2000)),
              ElementsAreArray(Hex("10 00 00 00 00 00 00 00  00 20 00 00 00 00 00 01")));
}

// The last 24 bytes of a command.
template <typename View>
View Last24(const std::string& hex) {
  return FromHex<View>(std::string(80, '0') + hex);
}

TEST(NvmeSpecTest, shouldHaveTheFieldsOfFabricsCommands) {
  const auto connect = Last24<ConnectCommand>(
      "01 00 02 00 1f 00 0c 00  88 13 00 00 00 00 00 00  00 00 00 00 00 00 00 00");
  EXPECT_EQ(connect.recfmt, 1);
  EXPECT_EQ(connect.qid, 2);
  EXPECT_EQ(connect.sqsize, 31);
  EXPECT_EQ(connect.cattr, kConnectDisableSqFlowControl | kConnectIndividualQueueDeletion);
  EXPECT_EQ(connect.kato, 5000u);

  const auto property = Last24<PropertyCommand>(
      "01 00 00 00 14 00 00 00  01 02 03 04 05 06 07 08  00 00 00 00 00 00 00 00");
  EXPECT_EQ(property.attrib & kPropertySizeMask, kProperty8Bytes);
  EXPECT_EQ(property.ofst, kPropertyCc);
  EXPECT_EQ(property.value, 0x0807060504030201u);

  const auto command = FromHex<SubmissionEntry>("7f 00 00 00 08 ff ff ff" + std::string(112, '0'));
  EXPECT_EQ(FabricsTypeOf(command), FabricsType::kDisconnect);
}

TEST(NvmeSpecTest, shouldHaveTheFieldsOfAdminCommands) {
  const auto identify = Last24<IdentifyCommand>(
      "06 00 34 12 78 56 00 02  00 00 00 00 00 00 00 00  7f 00 00 00 00 00 00 00");
  EXPECT_EQ(identify.cns, static_cast<uint8_t>(IdentifyCns::kControllerOfCommandSet));
  EXPECT_EQ(identify.cntid, 0x1234);
  EXPECT_EQ(identify.cns_specific_id, 0x5678);
  EXPECT_EQ(identify.csi, 2);
  EXPECT_EQ(identify.uuid_index, 0x7fu);

  const auto get = Last24<GetLogPageCommand>(
      "70 81 ff 03 01 00 22 11  00 04 00 00 05 00 00 00  01 00 80 07 00 00 00 00");
  EXPECT_EQ(get.lid, static_cast<uint8_t>(LogPageId::kDiscovery));
  EXPECT_EQ(get.lsp_rae & kLogRetainAsyncEvent, 0x80);
  EXPECT_EQ(get.numdl, 0x3ff);
  EXPECT_EQ(get.numdu, 1);
  EXPECT_EQ(get.lsi, 0x1122);
  EXPECT_EQ(get.lpol, 0x400u);
  EXPECT_EQ(get.lpou, 5u);
  EXPECT_EQ(get.uuid_index, 1);
  EXPECT_EQ(get.ot, kLogIndexOffset);
  EXPECT_EQ(get.csi, 7);

  const auto features = Last24<FeaturesCommand>(
      "07 03 00 80 03 00 03 00  00 00 00 00 00 00 00 00  00 00 00 00 00 00 00 00");
  EXPECT_EQ(features.fid, static_cast<uint8_t>(FeatureId::kNumberOfQueues));
  EXPECT_EQ(SelectOf(features), FeatureSelect::kSupported);
  EXPECT_EQ(features.save, kFeatureSave);
  EXPECT_EQ(features.cdw11, NumberOfQueues(3, 3));

  const auto abort = Last24<AbortCommand>(
      "02 00 34 12 00 00 00 00  00 00 00 00 00 00 00 00  00 00 00 00 00 00 00 00");
  EXPECT_EQ(abort.sqid, 2);
  EXPECT_EQ(abort.cid, 0x1234);
}

TEST(NvmeSpecTest, shouldHaveTheFieldsOfIoCommands) {
  const auto block = Last24<BlockCommand>(
      "01 02 03 04 05 06 07 08  07 00 00 c2 00 00 00 00  11 22 33 44 55 66 77 88");
  EXPECT_EQ(block.slba, 0x0807060504030201u);
  EXPECT_EQ(block.nlb, 7);
  EXPECT_EQ(block.control, kBlockLimitedRetry | kBlockForceUnitAccess | kBlockDeallocate);
  EXPECT_EQ(block.control & kBlockProtectionMask, 0);
  EXPECT_EQ(block.reference_tag, 0x44332211u);
  EXPECT_EQ(block.application_tag, 0x6655);
  EXPECT_EQ(block.application_tag_mask, 0x8877);

  const auto dataset = Last24<DatasetManagementCommand>(
      "ff 00 00 00 04 00 00 00  00 00 00 00 00 00 00 00  00 00 00 00 00 00 00 00");
  EXPECT_EQ(dataset.nr, 255);
  EXPECT_EQ(dataset.attributes, kDatasetDeallocate);

  const auto range = FromHex<DatasetRange>("00 00 00 00 08 00 00 00  10 00 00 00 00 00 00 01");
  EXPECT_EQ(range.nlb, 8u);
  EXPECT_EQ(range.slba, 0x0100000000000010u);
}

TEST(NvmeSpecTest, shouldWriteCompletions) {
  CompletionEntry completion = {};
  completion.result = ConnectResult(0x0102);
  completion.sqhd = 3;
  completion.cid = 0x1f;
  completion.status = StatusField(StatusCode::kConnectInvalidHost, true);
  // SC in bits 8:1, SCT in 11:9, DNR in 15: 1 000 001 1000 0100 0.
  EXPECT_THAT(ToBytes(completion),
              ElementsAreArray(Hex("02 01 00 00 00 00 00 00  03 00 00 00 1f 00 08 83")));
  EXPECT_EQ(CodeOf(completion.status), StatusCode::kConnectInvalidHost);
  EXPECT_EQ(StatusField(StatusCode::kSuccess, false), 0);
  EXPECT_EQ(StatusField(StatusCode::kInvalidField, true), 0x8004);
  EXPECT_EQ(StatusField(StatusCode::kLbaOutOfRange, false), 0x0100);
  EXPECT_EQ(StatusField(StatusCode::kUnrecoveredReadError, false), 0x0502);
}

TEST(NvmeSpecTest, shouldSayWhatIsWrongWithConnect) {
  EXPECT_EQ(ConnectInvalidResult(false, offsetof(ConnectCommand, qid)), 42u);
  EXPECT_EQ(ConnectInvalidResult(true, offsetof(ConnectData, subnqn)), 0x10100u);
}

TEST(NvmeSpecTest, shouldTellAsyncEvents) {
  EXPECT_EQ(AsyncEventResult(AsyncEventType::kNotice, kNoticeNamespaceChanged,
                             LogPageId::kChangedNamespaces),
            0x00040002u);
  EXPECT_EQ(
      AsyncEventResult(AsyncEventType::kNotice, kNoticeDiscoveryChanged, LogPageId::kDiscovery),
      0x0070f002u);
}

TEST(NvmeSpecTest, shouldHaveThePrivateDataOfConnections) {
  // Linux's host sends this to connect an I/O queue of 128 entries. Of the two sizes, hsqsize alone
  // is zero-based.
  const auto request = FromHex<RdmaRequest>("00 00 03 00 80 00 7f 00 01 00" + std::string(44, '0'));
  EXPECT_EQ(request.recfmt, 0);
  EXPECT_EQ(request.qid, 3);
  EXPECT_EQ(request.hrqsize, 128);
  EXPECT_EQ(request.hsqsize, 127);
  EXPECT_EQ(request.cntlid, 1);
  EXPECT_THAT(ToBytes(RdmaAccept{0, 128, {}}),
              ElementsAreArray(Hex("00 00 80 00" + std::string(56, '0'))));
  EXPECT_THAT(ToBytes(RdmaReject{0, RdmaRejectStatus::kInvalidHrqsize}),
              ElementsAreArray(Hex("00 00 05 00")));
}

TEST(NvmeSpecTest, shouldHaveTheBitsOfProperties) {
  EXPECT_EQ(Version(1, 4, 0), 0x00010400u);
  // MQES 127, CQR, TO 15 (7.5 s), the NVM command set alone, pages of 4 KiB alone.
  EXPECT_EQ(Capabilities(128, 15), 0x000000200f01007fu);
  EXPECT_EQ(Capabilities(65536, 0) & 0xffff, 0xffffu);
  // Linux's host: NVM command set, 4 KiB, round robin, entries of 64 and 16 bytes, enabled.
  constexpr uint32_t kEnabled = 0x00460001;
  EXPECT_TRUE(CcEnable(kEnabled));
  EXPECT_EQ(CcCommandSet(kEnabled), 0);
  EXPECT_EQ(CcPageSize(kEnabled), 0);
  EXPECT_EQ(CcArbitration(kEnabled), 0);
  EXPECT_EQ(CcShutdown(kEnabled), kShutdownNone);
  EXPECT_EQ(CcIoSqEntrySize(kEnabled), kIoSqEntryShift);
  EXPECT_EQ(CcIoCqEntrySize(kEnabled), kIoCqEntryShift);
  EXPECT_EQ(CcShutdown(0x00464001), kShutdownNormal);
  EXPECT_EQ(CcCommandSet(0x60), 6);
  EXPECT_EQ(CcPageSize(0x780), 15);
  EXPECT_EQ(CcArbitration(0x3800), 7);
  EXPECT_FALSE(CcEnable(0xfffffffe));
}

}  // namespace
}  // namespace baton::nvmed
