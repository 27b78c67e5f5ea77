// What controllers answer on their admin queue, and what it leaves in their state.
#include "worker/examples/nvmed/controller.h"

#include <cstring>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/examples/nvmed/hex.h"
#include "tests/worker/examples/nvmed/target_fixture.h"

namespace baton::nvmed {
namespace {

using testing::ElementsAre;

constexpr uint32_t kShutdown = 0x4000;  // CC.SHN: normal

class ControllerTest : public TargetFixture {
 protected:
  Answer Plain(ControllerState& state, AdminOpcode opcode) {
    return Execute(state, ViewOfOpcode<BlockCommand>(opcode));
  }
  Answer Identify(ControllerState& state, IdentifyCns cns, uint32_t nsid = 0, uint8_t csi = 0) {
    auto command = ViewOfOpcode<IdentifyCommand>(AdminOpcode::kIdentify);
    command.cns = static_cast<uint8_t>(cns);
    command.csi = csi;
    SubmissionEntry entry = EntryOf(command);
    entry.nsid = nsid;
    return Execute(state, entry);
  }
  Answer Log(ControllerState& state, LogPageId page, uint32_t bytes, uint64_t offset = 0,
             uint8_t lsp_rae = 0) {
    auto command = ViewOfOpcode<GetLogPageCommand>(AdminOpcode::kGetLogPage);
    command.lid = static_cast<uint8_t>(page);
    command.lsp_rae = lsp_rae;
    command.numdl = static_cast<uint16_t>(bytes / 4 - 1);
    command.numdu = static_cast<uint16_t>((bytes / 4 - 1) >> 16);
    command.lpol = static_cast<uint32_t>(offset);
    command.lpou = static_cast<uint32_t>(offset >> 32);
    return Execute(state, command);
  }
  Answer GetFeature(ControllerState& state, FeatureId feature, uint8_t select = 0,
                    uint32_t value = 0) {
    auto command = ViewOfOpcode<FeaturesCommand>(AdminOpcode::kGetFeatures);
    command.fid = static_cast<uint8_t>(feature);
    command.select = select;
    command.cdw11 = value;
    return Execute(state, command);
  }
  Answer SetFeature(ControllerState& state, FeatureId feature, uint32_t value, uint8_t save = 0) {
    auto command = ViewOfOpcode<FeaturesCommand>(AdminOpcode::kSetFeatures);
    command.fid = static_cast<uint8_t>(feature);
    command.save = save;
    command.cdw11 = value;
    return Execute(state, command);
  }
  // An Asynchronous Event Request.
  Answer Request(ControllerState& state, uint16_t slot, uint16_t command_id) {
    SubmissionEntry command = {};
    command.opcode = static_cast<uint8_t>(AdminOpcode::kAsyncEventRequest);
    command.cid = command_id;
    return Execute(state, command, slot);
  }
  Answer Abort(ControllerState& state, uint16_t queue, uint16_t command_id) {
    auto command = ViewOfOpcode<AbortCommand>(AdminOpcode::kAbort);
    command.sqid = queue;
    command.cid = command_id;
    return Execute(state, command);
  }
  // The event that a host is told now, by the command id of its request; 0: none.
  uint16_t Event(ControllerState& state) {
    HeldEvent request;
    uint64_t result = 0;
    if (!View(state).TakeEvent(&request, &result)) return 0;
    EXPECT_EQ(result, 0x040002u);  // a notice, namespaces, in log page 4
    return request.command_id;
  }
  ControllerState& AddWatching() {
    ControllerState& state = Add();
    EXPECT_EQ(SetFeature(state, FeatureId::kAsyncEventConfiguration, 0x100).status,
              StatusCode::kSuccess);
    return state;
  }
  void ExpectRefused(const Answer& answer, StatusCode status) {
    EXPECT_EQ(answer.status, status) << std::hex << static_cast<int>(answer.status);
    EXPECT_FALSE(answer.held);
    EXPECT_EQ(answer.released, 0u);
  }
};

// ---------------------------------------------------------------- properties

TEST_F(ControllerTest, shouldTellItsProperties) {
  ControllerState& state = Add(kOne, kHost, false);
  // Queues of 32, contiguous, ready within 7.5 s, the NVM command set.
  EXPECT_EQ(Get(state, kPropertyCap, kProperty8Bytes).result, 0x000000200f01001fu);
  EXPECT_EQ(Get(state, kPropertyVs).result, 0x010400u);
  EXPECT_EQ(Get(state, kPropertyCc).result, 0u);
  EXPECT_EQ(Get(state, kPropertyCsts).result, 0u);
}

TEST_F(ControllerTest, shouldRefusePropertiesOfAnotherSize) {
  ControllerState& state = Add();
  for (int size = 0; size < 8; ++size) {
    for (const uint32_t property : {kPropertyCap, kPropertyVs, kPropertyCc, kPropertyCsts}) {
      const int right = property == kPropertyCap ? kProperty8Bytes : kProperty4Bytes;
      EXPECT_EQ(Get(state, property, static_cast<uint8_t>(size)).status,
                size == right ? StatusCode::kSuccess : StatusCode::kInvalidField);
    }
    if (size != kProperty4Bytes) {
      EXPECT_EQ(Set(state, 0, kPropertyCc, static_cast<uint8_t>(size)).status,
                StatusCode::kInvalidField);
    }
  }
  // The other bits are reserved.
  EXPECT_EQ(Get(state, kPropertyVs, 0xf8).status, StatusCode::kSuccess);
  EXPECT_EQ(state.configuration, kEnable);
}

TEST_F(ControllerTest, shouldRefusePropertiesThatAreNotThere) {
  ControllerState& state = Add();
  for (const uint32_t property : {0x04u, 0x0cu, 0x10u, 0x18u, 0x20u, 0x24u, 0x38u, 0xfffffffcu}) {
    EXPECT_EQ(Get(state, property).status, StatusCode::kInvalidField) << property;
    EXPECT_EQ(Set(state, 0, property).status, StatusCode::kInvalidField) << property;
  }
  for (const uint32_t property : {kPropertyCap, kPropertyVs, kPropertyCsts}) {
    EXPECT_EQ(Set(state, 0, property).status, StatusCode::kInvalidField) << "they are read only";
  }
  EXPECT_EQ(state.configuration, kEnable);
}

TEST_F(ControllerTest, shouldBeReadyOnceItIsEnabled) {
  ControllerState& state = Add(kOne, kHost, false);
  EXPECT_FALSE(View(state).enabled());
  registry_.Saved();
  EXPECT_EQ(Set(state, kEnable).status, StatusCode::kSuccess);
  EXPECT_TRUE(registry_.touched());
  EXPECT_EQ(Get(state, kPropertyCc).result, kEnable);
  EXPECT_EQ(Get(state, kPropertyCsts).result, kCstsReady);
  EXPECT_TRUE(View(state).enabled());
  Set(state, kEnable & ~1u);
  EXPECT_EQ(Get(state, kPropertyCsts).result, 0u);
  EXPECT_FALSE(View(state).enabled());
}

// It has no I/O queues.
TEST_F(ControllerTest, shouldBeEnabledWithoutSizesOfEntriesForDiscovery) {
  ControllerState& state = Add(kDiscoveryNqn, kHost, false);
  Set(state, 1);
  EXPECT_EQ(Get(state, kPropertyCsts).result, kCstsReady);
}

TEST_F(ControllerTest, shouldFailWhenItIsEnabledAsItCannotBe) {
  ControllerState& state = Add(kOne, kHost, false);
  const uint32_t cases[] = {
      kEnable | 1 << 4,               // another command set
      kEnable | 6 << 4,               // all of them
      kEnable | 1 << 7,               // pages of 8 KiB
      kEnable | 1 << 11,              // arbitration with weights
      0x00000001,                     // no sizes of entries
      0x00470001,        0x00560001,  // others
  };
  for (const uint32_t configuration : cases) {
    EXPECT_EQ(Set(state, configuration).status, StatusCode::kSuccess);
    EXPECT_EQ(Get(state, kPropertyCsts).result, kCstsFatal) << configuration;
    EXPECT_FALSE(View(state).enabled());
    ExpectRefused(Identify(state, IdentifyCns::kController), StatusCode::kCommandSequenceError);
    Set(state, 0);
    EXPECT_EQ(Get(state, kPropertyCsts).result, 0u);
  }
  Set(state, kEnable);
  EXPECT_EQ(Get(state, kPropertyCsts).result, kCstsReady);
}

TEST_F(ControllerTest, shouldCompleteShutdowns) {
  ControllerState& state = Add();
  for (const uint32_t shutdown : {kShutdown, 2 * kShutdown}) {
    Set(state, kEnable | shutdown);
    EXPECT_EQ(Get(state, kPropertyCsts).result, kCstsReady | kCstsShutdownComplete);
    Set(state, kEnable);
    EXPECT_EQ(Get(state, kPropertyCsts).result, kCstsReady);
  }
  Set(state, kEnable | kShutdown);
  Set(state, kShutdown);
  EXPECT_EQ(Get(state, kPropertyCsts).result, 0u) << "a reset";
}

TEST_F(ControllerTest, shouldExecuteNothingButKeepAliveBeforeItIsEnabled) {
  ControllerState& state = Add(kOne, kHost, false);
  for (int opcode = 0; opcode < 0x7f; ++opcode) {
    const Answer answer = Plain(state, static_cast<AdminOpcode>(opcode));
    EXPECT_EQ(answer.status,
              opcode == 0x18 ? StatusCode::kSuccess : StatusCode::kCommandSequenceError)
        << opcode;
  }
  EXPECT_EQ(state.held_count, 0u);
}

TEST_F(ControllerTest, shouldRefuseOtherOpcodes) {
  ControllerState& state = Add();
  for (const int opcode :
       {0x00, 0x01, 0x04, 0x05, 0x03, 0x0d, 0x10, 0x11, 0x14, 0x15, 0x19, 0x1a,
        0x1c, 0x1d, 0x1e, 0x7c, 0x7f, 0x80, 0x81, 0x82, 0x84, 0x86, 0xc0, 0xff}) {
    ExpectRefused(Plain(state, static_cast<AdminOpcode>(opcode)), StatusCode::kInvalidOpcode);
  }
}

TEST_F(ControllerTest, shouldLetGoWhatItHoldsWithAReset) {
  ControllerState& state = AddWatching();
  for (uint16_t i = 0; i < kMaxHeldEvents; ++i) Request(state, i, static_cast<uint16_t>(100 + i));
  registry_.Saved();
  const Answer answer = Set(state, 0);
  EXPECT_EQ(answer.released, kMaxHeldEvents);
  EXPECT_FALSE(answer.answer_released) << "they end without answers";
  for (uint16_t i = 0; i < kMaxHeldEvents; ++i) {
    EXPECT_EQ(answer.release[i].slot, i);
    EXPECT_EQ(answer.release[i].command_id, 100 + i);
  }
  EXPECT_EQ(state.held_count, 0u);
  EXPECT_EQ(state.event_configuration, 0u);
  EXPECT_TRUE(registry_.touched());
  EXPECT_EQ(Set(state, 0).released, 0u);
}

// ---------------------------------------------------------------- Identify

TEST_F(ControllerTest, shouldIdentifyItself) {
  ControllerState& state = Add();
  EXPECT_EQ(Identify(state, IdentifyCns::kController).status, StatusCode::kSuccess);
  const auto data = Returned<IdentifyController>();
  EXPECT_EQ(std::string(data.sn, 2), "1 ");
  EXPECT_EQ(std::string(data.mn, 12), "Baton nvmed ");
  EXPECT_EQ(std::string(data.fr, 8), "v1      ");
  EXPECT_STREQ(data.subnqn, kOne);
  EXPECT_EQ(data.cntlid, state.id);
  EXPECT_EQ(data.ver, 0x010400u);
  EXPECT_EQ(data.cntrltype, ControllerType::kIo);
  EXPECT_EQ(data.mdts, 5);
  EXPECT_EQ(data.maxcmd, 32);
  EXPECT_EQ(data.ioccsz, 260u);
  EXPECT_EQ(data.aerl, kMaxHeldEvents - 1);
  EXPECT_EQ(data.elpe, kErrorEntries - 1);
  EXPECT_EQ(data.oaes, 0x100u);
  EXPECT_EQ(data.nn, 1024u);
  EXPECT_EQ(data.oncs, kOptionalDatasetManagement | kOptionalWriteZeroes);
  EXPECT_EQ(data.vwc, kWriteCacheNoBroadcastFlush) << "memory has no cache";
  EXPECT_EQ(data_.size(), 4096u);
}

TEST_F(ControllerTest, shouldSayHowMuchACommandMayMove) {
  ControllerState& state = Add();
  for (int shift = 1; shift <= 12; ++shift) {
    options_.max_transfer_bytes = 4096u << shift;
    Identify(state, IdentifyCns::kController);
    EXPECT_EQ(Returned<IdentifyController>().mdts, shift);
  }
}

TEST_F(ControllerTest, shouldIdentifyDiscovery) {
  ControllerState& state = Add(kDiscoveryNqn);
  EXPECT_EQ(View(state).subsystem(), nullptr);
  EXPECT_EQ(Identify(state, IdentifyCns::kController).status, StatusCode::kSuccess);
  const auto data = Returned<IdentifyController>();
  EXPECT_STREQ(data.subnqn, kDiscoveryNqn);
  EXPECT_EQ(data.cntrltype, ControllerType::kDiscovery);
  EXPECT_EQ(data.oaes, 0u);
  EXPECT_EQ(data.oncs, 0u);
  for (const IdentifyCns cns : {IdentifyCns::kNamespace, IdentifyCns::kActiveNamespaces,
                                IdentifyCns::kNamespaceDescriptors}) {
    ExpectRefused(Identify(state, cns, 1), StatusCode::kInvalidField);
  }
}

TEST_F(ControllerTest, shouldIdentifyNamespaces) {
  ControllerState& state = Add();
  EXPECT_EQ(Identify(state, IdentifyCns::kNamespace, 3).status, StatusCode::kSuccess);
  auto data = Returned<IdentifyNamespace>();
  EXPECT_EQ(data.nsze, 3u);
  EXPECT_EQ(data.ncap, 3u);
  EXPECT_EQ(data.lbaf[0].lbads, 12);
  EXPECT_EQ(data.nsattr, 0);
  EXPECT_EQ(data.dlfeat, kDeallocatedReadsZero | kDeallocatedByWriteZeroes);
  Identify(state, IdentifyCns::kNamespace, 7);
  data = Returned<IdentifyNamespace>();
  EXPECT_EQ(data.nsze, 16u);
  EXPECT_EQ(data.lbaf[0].lbads, 9);
}

TEST_F(ControllerTest, shouldIdentifyNamespacesThatAreNotAttachedAsZeroes) {
  ControllerState& state = Add();
  for (const uint32_t nsid : {1u, 2u, 1024u}) {
    EXPECT_EQ(Identify(state, IdentifyCns::kNamespace, nsid).status, StatusCode::kSuccess);
    EXPECT_EQ(data_, std::vector<uint8_t>(4096));
  }
  for (const uint32_t nsid : {0u, 1025u, 0xfffffffeu, 0xffffffffu}) {
    ExpectRefused(Identify(state, IdentifyCns::kNamespace, nsid),
                  StatusCode::kInvalidNamespaceOrFormat);
  }
}

TEST_F(ControllerTest, shouldListNamespacesAboveTheOneThatIsNamed) {
  ControllerState& state = Add();
  const auto list = [&](uint32_t after) {
    EXPECT_EQ(Identify(state, IdentifyCns::kActiveNamespaces, after).status, StatusCode::kSuccess);
    const auto data = Returned<NamespaceList>();
    EXPECT_EQ(data.nsid[3], 0u);
    return std::vector<uint32_t>(data.nsid, data.nsid + 3);
  };
  EXPECT_THAT(list(0), ElementsAre(3, 7, 0));
  EXPECT_THAT(list(2), ElementsAre(3, 7, 0));
  EXPECT_THAT(list(3), ElementsAre(7, 0, 0));
  EXPECT_THAT(list(7), ElementsAre(0, 0, 0));
  EXPECT_THAT(list(0xfffffffd), ElementsAre(0, 0, 0));
  for (const uint32_t nsid : {0xfffffffeu, 0xffffffffu}) {
    ExpectRefused(Identify(state, IdentifyCns::kActiveNamespaces, nsid),
                  StatusCode::kInvalidNamespaceOrFormat);
  }
}

TEST_F(ControllerTest, shouldDescribeNamespacesByTheirUuids) {
  ControllerState& state = Add();
  EXPECT_EQ(Identify(state, IdentifyCns::kNamespaceDescriptors, 7).status, StatusCode::kSuccess);
  std::vector<uint8_t> expected = Hex("03 10 00 00");
  const auto& uuid = target_->Find(kOne)->Find(7)->uuid;
  expected.insert(expected.end(), uuid.begin(), uuid.end());
  expected.resize(4096);
  EXPECT_EQ(data_, expected);
  for (const uint32_t nsid : {0u, 1u, 0xffffffffu}) {
    ExpectRefused(Identify(state, IdentifyCns::kNamespaceDescriptors, nsid),
                  StatusCode::kInvalidNamespaceOrFormat);
  }
}

TEST_F(ControllerTest, shouldIdentifyTheNvmCommandSetAlone) {
  ControllerState& state = Add();
  EXPECT_EQ(Identify(state, IdentifyCns::kControllerOfCommandSet).status, StatusCode::kSuccess);
  std::vector<uint8_t> limits(4096);  // of Dataset Management: one of the namespaces is in memory
  limits[3] = 16;
  limits[5] = 0x10;
  limits[10] = 1;
  EXPECT_EQ(data_, limits);
  ExpectRefused(Identify(state, IdentifyCns::kControllerOfCommandSet, 0, 2),
                StatusCode::kInvalidField);
  for (const int cns : {0x04, 0x05, 0x07, 0x08, 0x10, 0x13, 0x15, 0x1c, 0xff}) {
    ExpectRefused(Identify(state, static_cast<IdentifyCns>(cns), 3), StatusCode::kInvalidField);
  }
}

// The configuration of a later worker may have it no more.
TEST_F(ControllerTest, shouldGoOnWithoutItsSubsystem) {
  ControllerState& state = Add(kTwo);
  target_->subsystems().pop_back();
  EXPECT_EQ(View(state).subsystem(), nullptr);
  EXPECT_EQ(Identify(state, IdentifyCns::kController).status, StatusCode::kSuccess);
  ExpectRefused(Identify(state, IdentifyCns::kActiveNamespaces), StatusCode::kInvalidField);
  EXPECT_EQ(Log(state, LogPageId::kHealth, 512).status, StatusCode::kSuccess);
  ExpectRefused(GetFeature(state, FeatureId::kVolatileWriteCache), StatusCode::kInvalidField);
}

// ---------------------------------------------------------------- log pages

TEST_F(ControllerTest, shouldLogTheLastErrorsNewestFirst) {
  ControllerState& state = Add();
  Log(state, LogPageId::kErrorInformation, 256);
  EXPECT_EQ(data_, std::vector<uint8_t>(256));
  for (uint16_t i = 1; i <= 6; ++i) {
    BlockCommand block = ViewOfOpcode<BlockCommand>(AdminOpcode{0x01});
    block.slba = 1000u + i;
    SubmissionEntry command = EntryOf(block);
    command.nsid = 3;
    command.cid = static_cast<uint16_t>(20 + i);
    registry_.Saved();
    View(state).NoteError(i == 6 ? 0 : 2, command, StatusField(StatusCode::kLbaOutOfRange, true));
    EXPECT_TRUE(registry_.touched());
  }
  EXPECT_EQ(Log(state, LogPageId::kErrorInformation, 320).status, StatusCode::kSuccess);
  for (size_t i = 0; i < 5; ++i) {
    ErrorLogEntry entry;
    std::memcpy(&entry, data_.data() + i * sizeof(entry), sizeof(entry));
    if (i == 4) {
      EXPECT_EQ(entry.error_count, 0u) << "there are four";
      break;
    }
    EXPECT_EQ(entry.error_count, 6 - i);
    EXPECT_EQ(entry.cid, 26 - i);
    EXPECT_EQ(entry.sqid, i == 0 ? 0 : 2);
    EXPECT_EQ(entry.lba, i == 0 ? 0 : 1006 - i) << "admin commands have none";
    EXPECT_EQ(entry.nsid, 3u);
    EXPECT_EQ(entry.status, 0x8100);
    EXPECT_EQ(entry.parameter_error_location, 0xffff);
  }
}

// Whatever a former owner left there.
TEST_F(ControllerTest, shouldLogErrorsOfAnyState) {
  ControllerState& state = Add();
  for (ErrorRecord& record : state.error_log) {
    record = {UINT64_MAX, UINT64_MAX, UINT32_MAX, UINT16_MAX,
              UINT16_MAX, UINT16_MAX, UINT16_MAX, 0};
  }
  state.errors = UINT64_MAX;
  EXPECT_EQ(Log(state, LogPageId::kErrorInformation, 256).status, StatusCode::kSuccess);
  View(state).NoteError(0, SubmissionEntry(), 2);
  EXPECT_EQ(state.errors, 0u);
  EXPECT_EQ(Log(state, LogPageId::kErrorInformation, 256).status, StatusCode::kSuccess);
  EXPECT_EQ(data_, std::vector<uint8_t>(256));
}

TEST_F(ControllerTest, shouldLogItsHealth) {
  ControllerState& state = Add();
  totals_ = {11, 12, 512001, 1};
  state.errors = 13;
  EXPECT_EQ(Log(state, LogPageId::kHealth, 512).status, StatusCode::kSuccess);
  const auto log = Returned<HealthLog>();
  EXPECT_EQ(log.host_read_commands[0], 11u);
  EXPECT_EQ(log.host_write_commands[0], 12u);
  EXPECT_EQ(log.data_units_read[0], 2u);
  EXPECT_EQ(log.data_units_written[0], 1u);
  EXPECT_EQ(log.error_log_entries[0], 13u);
  EXPECT_EQ(log.critical_warning, 0);
}

TEST_F(ControllerTest, shouldLogItsFirmwareAndItsCommands) {
  ControllerState& state = Add();
  EXPECT_EQ(Log(state, LogPageId::kFirmwareSlot, 512).status, StatusCode::kSuccess);
  EXPECT_EQ(std::string(Returned<FirmwareSlotLog>().frs[0], 8), "v1      ");
  EXPECT_EQ(Log(state, LogPageId::kCommandsSupported, 4096).status, StatusCode::kSuccess);
  const auto log = Returned<CommandsSupportedLog>();
  for (const int opcode : {0x02, 0x06, 0x08, 0x09, 0x0a, 0x0c, 0x18}) {
    EXPECT_EQ(log.admin[opcode], kCommandSupported) << opcode;
  }
  EXPECT_EQ(log.io[0x05], 0u) << "Compare";
  EXPECT_EQ(log.io[0x09], kCommandSupported | kCommandChangesBlocks);
}

TEST_F(ControllerTest, shouldRefuseOtherLogPages) {
  ControllerState& state = Add();
  for (const int page : {0x00, 0x06, 0x07, 0x08, 0x0d, 0x70, 0x71, 0x80, 0xff}) {
    ExpectRefused(Log(state, static_cast<LogPageId>(page), 512), StatusCode::kInvalidLogPage);
  }
  ControllerState& discovery = Add(kDiscoveryNqn);
  for (const int page : {0x00, 0x01, 0x02, 0x03, 0x04, 0x05, 0xff}) {
    ExpectRefused(Log(discovery, static_cast<LogPageId>(page), 512), StatusCode::kInvalidLogPage);
  }
}

TEST_F(ControllerTest, shouldRefuseOffsetsBeyondALogPage) {
  ControllerState& state = Add();
  EXPECT_EQ(Log(state, LogPageId::kHealth, 512, 512).status, StatusCode::kSuccess);
  EXPECT_EQ(data_, std::vector<uint8_t>(512));
  for (const uint64_t offset : {uint64_t{516}, uint64_t{2}, uint64_t{1} << 32, UINT64_MAX - 3}) {
    ExpectRefused(Log(state, LogPageId::kHealth, 512, offset), StatusCode::kInvalidField);
  }
}

TEST_F(ControllerTest, shouldTellHostsOfTheSubsystemsThatAdmitThem) {
  const auto names = [&](std::string_view host) {
    ControllerState& state = Add(kDiscoveryNqn, host);
    EXPECT_EQ(Log(state, LogPageId::kDiscovery, 4096).status, StatusCode::kSuccess);
    const auto header = Returned<DiscoveryLogHeader>();
    std::vector<std::string> found;
    for (uint64_t i = 0; i < header.numrec; ++i) {
      DiscoveryEntry entry;
      std::memcpy(&entry, data_.data() + 1024 * (i + 1), sizeof(entry));
      found.emplace_back(entry.subnqn);
      EXPECT_EQ(entry.trtype, TransportType::kRdma);
      EXPECT_EQ(entry.adrfam, AddressFamily::kIpv4);
      EXPECT_EQ(std::string(entry.traddr, 9), "10.0.0.1 ");
      EXPECT_EQ(std::string(entry.trsvcid, 5), "4420 ");
      EXPECT_EQ(entry.cntlid, kDynamicController);
    }
    return found;
  };
  EXPECT_THAT(names(kHost), ElementsAre(kOne, kTwo));
  EXPECT_THAT(names(kOtherHost), ElementsAre(kOne));
  options_.address = "fe80::1";
  ControllerState& state = *registry_.Find(1);
  Log(state, LogPageId::kDiscovery, 2048);
  DiscoveryEntry entry;
  std::memcpy(&entry, data_.data() + 1024, sizeof(entry));
  EXPECT_EQ(entry.adrfam, AddressFamily::kIpv6);
}

TEST_F(ControllerTest, shouldTellHostsThatTheirDiscoveryLogHasChanged) {
  const auto generation = [&] {
    ControllerState& state = *registry_.Find(1);
    EXPECT_EQ(Log(state, LogPageId::kDiscovery, 1024).status, StatusCode::kSuccess);
    return Returned<DiscoveryLogHeader>().genctr;
  };
  Add(kDiscoveryNqn);
  const uint64_t before = generation();
  EXPECT_EQ(generation(), before);
  target_->subsystems()[1].hosts = {kOtherHost};
  const uint64_t fewer = generation();
  EXPECT_NE(fewer, before);
  options_.port = 4421;
  EXPECT_NE(generation(), fewer);
}

// ---------------------------------------------------------------- features

TEST_F(ControllerTest, shouldGrantAsManyQueuesAsAreAskedForAndThere) {
  ControllerState& state = Add();
  const auto grant = [&](uint32_t value) {
    const Answer answer = SetFeature(state, FeatureId::kNumberOfQueues, value);
    EXPECT_EQ(answer.status, StatusCode::kSuccess);
    EXPECT_EQ(GetFeature(state, FeatureId::kNumberOfQueues).result, answer.result);
    return answer.result;
  };
  EXPECT_EQ(grant(NumberOfQueues(0, 0)), 0u);
  EXPECT_EQ(state.granted_queues, 1u);
  EXPECT_EQ(grant(NumberOfQueues(3, 5)), NumberOfQueues(3, 3));
  EXPECT_EQ(grant(NumberOfQueues(5, 3)), NumberOfQueues(3, 3));
  EXPECT_EQ(state.granted_queues, 4u);
  EXPECT_EQ(grant(NumberOfQueues(0xfffe, 0xfffe)), NumberOfQueues(7, 7));
  EXPECT_EQ(state.granted_queues, 8u);
  EXPECT_TRUE(registry_.touched());
}

TEST_F(ControllerTest, shouldRefuseNumbersOfQueuesThatCannotBe) {
  ControllerState& state = Add();
  for (const uint32_t value : {0xffff0000u, 0x0000ffffu, 0xffffffffu}) {
    ExpectRefused(SetFeature(state, FeatureId::kNumberOfQueues, value), StatusCode::kInvalidField);
  }
  SetFeature(state, FeatureId::kNumberOfQueues, 0x00010001);
  state.queues = 1;
  ExpectRefused(SetFeature(state, FeatureId::kNumberOfQueues, 0),
                StatusCode::kCommandSequenceError);
  EXPECT_EQ(state.granted_queues, 2u);
  ControllerState& discovery = Add(kDiscoveryNqn);
  ExpectRefused(SetFeature(discovery, FeatureId::kNumberOfQueues, 0), StatusCode::kInvalidField);
  EXPECT_EQ(discovery.granted_queues, 0u);
}

TEST_F(ControllerTest, shouldKeepWhatIsSet) {
  ControllerState& state = Add();
  registry_.Saved();
  EXPECT_EQ(SetFeature(state, FeatureId::kAsyncEventConfiguration, 0x1ff).status,
            StatusCode::kSuccess);
  EXPECT_EQ(GetFeature(state, FeatureId::kAsyncEventConfiguration).result, 0x1ffu);
  EXPECT_EQ(GetFeature(state, FeatureId::kKeepAliveTimer).result, 5000u);
  EXPECT_EQ(SetFeature(state, FeatureId::kKeepAliveTimer, 60000).status, StatusCode::kSuccess);
  EXPECT_EQ(GetFeature(state, FeatureId::kKeepAliveTimer).result, 60000u);
  EXPECT_TRUE(registry_.touched());
}

TEST_F(ControllerTest, shouldTellTheHostIdentifierOf128Bits) {
  ControllerState& state = Add();
  EXPECT_EQ(GetFeature(state, FeatureId::kHostIdentifier, 0, 1).status, StatusCode::kSuccess);
  EXPECT_EQ(data_, std::vector<uint8_t>(16, 0xab));
  ExpectRefused(GetFeature(state, FeatureId::kHostIdentifier, 0, 0), StatusCode::kInvalidField);
  ExpectRefused(SetFeature(state, FeatureId::kHostIdentifier, 1),
                StatusCode::kCommandSequenceError);
}

TEST_F(ControllerTest, shouldTellFeaturesThatCannotBeChanged) {
  ControllerState& state = Add();
  for (const FeatureId feature :
       {FeatureId::kArbitration, FeatureId::kPowerManagement, FeatureId::kTemperatureThreshold,
        FeatureId::kErrorRecovery, FeatureId::kWriteAtomicity}) {
    const Answer answer = GetFeature(state, feature);
    EXPECT_EQ(answer.status, StatusCode::kSuccess);
    EXPECT_EQ(answer.result, 0u);
    ExpectRefused(SetFeature(state, feature, 1), StatusCode::kFeatureNotChangeable);
  }
  ExpectRefused(SetFeature(state, FeatureId::kVolatileWriteCache, 0),
                StatusCode::kFeatureNotChangeable);
}

TEST_F(ControllerTest, shouldRefuseOtherFeaturesAndValuesThatAreNotTheCurrentOnes) {
  ControllerState& state = Add();
  for (const int feature : {0x00, 0x03, 0x08, 0x09, 0x0c, 0x0e, 0x16, 0x82, 0x83, 0x84, 0xff}) {
    ExpectRefused(GetFeature(state, static_cast<FeatureId>(feature)), StatusCode::kInvalidField);
    ExpectRefused(SetFeature(state, static_cast<FeatureId>(feature), 0), StatusCode::kInvalidField);
  }
  for (uint8_t select = 1; select < 8; ++select) {
    ExpectRefused(GetFeature(state, FeatureId::kKeepAliveTimer, select), StatusCode::kInvalidField);
  }
}

TEST_F(ControllerTest, shouldRefuseToSaveFeatures) {
  ControllerState& state = Add();
  for (const FeatureId feature : {FeatureId::kKeepAliveTimer, FeatureId::kNumberOfQueues,
                                  FeatureId::kAsyncEventConfiguration}) {
    ExpectRefused(SetFeature(state, feature, 0, kFeatureSave),
                  StatusCode::kFeatureIdentifierNotSaveable);
  }
  EXPECT_EQ(state.keep_alive_ms, 5000u);
}

// ---------------------------------------------------------------- events

TEST_F(ControllerTest, shouldHoldAsManyRequestsAsItSays) {
  ControllerState& state = Add();
  for (uint16_t i = 0; i < kMaxHeldEvents; ++i) {
    registry_.Saved();
    const Answer answer = Request(state, static_cast<uint16_t>(10 + i), i);
    EXPECT_TRUE(answer.held);
    EXPECT_EQ(state.held[i].slot, 10 + i);
    EXPECT_EQ(state.held[i].command_id, i);
    EXPECT_TRUE(registry_.touched());
  }
  ExpectRefused(Request(state, 5, 50), StatusCode::kAsyncEventRequestLimitExceeded);
  EXPECT_EQ(state.held_count, kMaxHeldEvents);
}

TEST_F(ControllerTest, shouldTellOfChangedNamespacesOnceUntilTheLogIsRead) {
  ControllerState& state = AddWatching();
  for (uint16_t i = 1; i <= 3; ++i) Request(state, i, i);
  EXPECT_EQ(Event(state), 0) << "nothing has happened";
  View(state).NoteNamespacesChanged();
  EXPECT_EQ(Event(state), 3) << "the request that came last";
  EXPECT_EQ(state.held_count, 2u);
  EXPECT_EQ(Event(state), 0);
  View(state).NoteNamespacesChanged();
  EXPECT_EQ(Event(state), 0) << "the host has been told and has not looked yet";
  Log(state, LogPageId::kChangedNamespaces, 4096);
  View(state).NoteNamespacesChanged();
  EXPECT_EQ(Event(state), 2);
  EXPECT_EQ(state.held[0].command_id, 1);
}

TEST_F(ControllerTest, shouldClearTheLogOfChangesOnlyWhenItIsReadToBeCleared) {
  ControllerState& state = AddWatching();
  const auto read = [&](uint8_t retain) {
    EXPECT_EQ(Log(state, LogPageId::kChangedNamespaces, 4096, 0, retain).status,
              StatusCode::kSuccess);
    return Returned<NamespaceList>().nsid[0];
  };
  EXPECT_EQ(read(0), 0u);
  View(state).NoteNamespacesChanged();
  EXPECT_EQ(read(kLogRetainAsyncEvent), 0xffffffffu);
  EXPECT_EQ(read(kLogRetainAsyncEvent), 0xffffffffu);
  ExpectRefused(Log(state, LogPageId::kChangedNamespaces, 4096, 4100), StatusCode::kInvalidField);
  EXPECT_EQ(read(0), 0xffffffffu);
  EXPECT_EQ(read(0), 0u);
  Request(state, 1, 1);
  EXPECT_EQ(Event(state), 0) << "the host knows";
}

TEST_F(ControllerTest, shouldKeepAnEventUntilThereIsARequestForIt) {
  ControllerState& state = AddWatching();
  View(state).NoteNamespacesChanged();
  EXPECT_EQ(Event(state), 0);
  Request(state, 1, 9);
  EXPECT_EQ(Event(state), 9);
}

TEST_F(ControllerTest, shouldTellNoEventsThatNobodyWantsToHearOf) {
  ControllerState& state = Add();
  Request(state, 1, 9);
  View(state).NoteNamespacesChanged();
  SetFeature(state, FeatureId::kAsyncEventConfiguration, ~0x100u);
  EXPECT_EQ(Event(state), 0);
  SetFeature(state, FeatureId::kAsyncEventConfiguration, 0x100);
  EXPECT_EQ(Event(state), 9);
  ControllerState& discovery = Add(kDiscoveryNqn);
  SetFeature(discovery, FeatureId::kAsyncEventConfiguration, 0x100);
  Request(discovery, 1, 9);
  View(discovery).NoteNamespacesChanged();
  EXPECT_EQ(Event(discovery), 0) << "discovery has no namespaces";
}

TEST_F(ControllerTest, shouldTellOfChangesAgainAfterAReset) {
  ControllerState& state = AddWatching();
  Request(state, 1, 1);
  View(state).NoteNamespacesChanged();
  EXPECT_EQ(Event(state), 1);
  // The host looks at the namespaces now, and not at the log.
  Set(state, 0);
  Set(state, kEnable);
  SetFeature(state, FeatureId::kAsyncEventConfiguration, 0x100);
  Request(state, 1, 2);
  EXPECT_EQ(Event(state), 0);
  View(state).NoteNamespacesChanged();
  EXPECT_EQ(Event(state), 2);
}

TEST_F(ControllerTest, shouldAbortWhatItHolds) {
  ControllerState& state = Add();
  for (uint16_t i = 1; i <= 3; ++i) Request(state, static_cast<uint16_t>(10 + i), i);
  registry_.Saved();
  const Answer answer = Abort(state, 0, 2);
  EXPECT_EQ(answer.status, StatusCode::kSuccess);
  EXPECT_EQ(answer.result, 0u) << "it was aborted";
  ASSERT_EQ(answer.released, 1u);
  EXPECT_TRUE(answer.answer_released);
  EXPECT_EQ(answer.release[0].slot, 12);
  EXPECT_EQ(answer.release[0].command_id, 2);
  EXPECT_TRUE(registry_.touched());
  EXPECT_EQ(state.held_count, 2u);
  EXPECT_EQ(Abort(state, 0, 1).release[0].slot, 11);
  EXPECT_EQ(Abort(state, 0, 3).release[0].slot, 13);
  EXPECT_EQ(state.held_count, 0u);
}

TEST_F(ControllerTest, shouldNotAbortAnythingElse) {
  ControllerState& state = Add();
  Request(state, 11, 1);
  registry_.Saved();
  for (const auto& [queue, command] : {std::pair<uint16_t, uint16_t>{0, 2}, {1, 1}, {0xffff, 1}}) {
    const Answer answer = Abort(state, queue, command);
    EXPECT_EQ(answer.status, StatusCode::kSuccess);
    EXPECT_EQ(answer.result, kNotAborted);
    EXPECT_EQ(answer.released, 0u);
  }
  EXPECT_EQ(state.held_count, 1u);
  EXPECT_FALSE(registry_.touched());
}

TEST_F(ControllerTest, shouldAnswerKeepAlive) {
  ControllerState& state = Add();
  const Answer answer = Plain(state, AdminOpcode::kKeepAlive);
  EXPECT_EQ(answer.status, StatusCode::kSuccess);
  EXPECT_EQ(answer.result, 0u);
}

}  // namespace
}  // namespace baton::nvmed
