// What Identify and Get Log Page return, as bytes at the offsets of the specifications.
#include "worker/examples/nvmed/identify.h"

#include <numeric>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/examples/nvmed/hex.h"

namespace baton::nvmed {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::ElementsAreArray;

using Bytes = std::vector<uint8_t>;

SubsystemDescription ASubsystem() {
  SubsystemDescription subsystem;
  subsystem.nqn = "nqn.2026-01.example:disk";
  subsystem.serial = "B4T0N";
  subsystem.model = "Baton nvmed";
  subsystem.firmware = "1.0";
  subsystem.max_nsid = 16;
  return subsystem;
}

ControllerDescription Controller() {
  ControllerDescription controller;
  controller.cntlid = 0x0102;
  controller.mdts = 5;
  controller.ioccsz = 4 + 8192 / 16;
  controller.oaes = kAsyncEventNamespaceChanged;
  return controller;
}

NamespaceDescription ANamespace() {
  NamespaceDescription description;
  description.nsid = 1;
  description.block_count = 0x0000010203040506;
  description.block_shift = 12;
  std::iota(description.uuid.begin(), description.uuid.end(), uint8_t{0x10});
  std::iota(description.nguid.begin(), description.nguid.end(), uint8_t{0x30});
  std::iota(description.eui64.begin(), description.eui64.end(), uint8_t{0x50});
  return description;
}

// `length` bytes at `offset`.
template <typename T>
Bytes At(const T& data, size_t offset, size_t length) {
  const Bytes bytes = ToBytes(data);
  EXPECT_LE(offset + length, bytes.size());
  return {bytes.begin() + static_cast<ptrdiff_t>(offset),
          bytes.begin() + static_cast<ptrdiff_t>(offset + length)};
}
template <typename T>
std::string TextAt(const T& data, size_t offset, size_t length) {
  const Bytes bytes = At(data, offset, length);
  return {bytes.begin(), bytes.end()};
}

// --- Descriptions
// ---------------------------------------------------------------------------------

template <typename Description, typename Change>
void ExpectFieldRefused(Description description, Change change, const std::string& field) {
  EXPECT_TRUE(Validate(description).ok()) << Validate(description);
  change(description);
  const absl::Status status = Validate(description);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << field;
  EXPECT_THAT(std::string(status.message()), testing::StartsWith(field + ": "));
}

TEST(IdentifyTest, shouldRefuseSubsystemsThatCannotBeTold) {
  using S = SubsystemDescription;
  ExpectFieldRefused(
      ASubsystem(), [](S& s) { s.nqn = ""; }, "nqn");
  ExpectFieldRefused(
      ASubsystem(), [](S& s) { s.nqn = "disk"; }, "nqn");
  ExpectFieldRefused(
      ASubsystem(), [](S& s) { s.nqn = "nqn." + std::string(220, 'a'); }, "nqn");
  ExpectFieldRefused(
      ASubsystem(), [](S& s) { s.nqn = std::string("nqn.a\0b", 7); }, "nqn");
  ExpectFieldRefused(
      ASubsystem(), [](S& s) { s.nqn = "nqn.\xff"; }, "nqn");
  ExpectFieldRefused(
      ASubsystem(), [](S& s) { s.serial = std::string(21, '1'); }, "serial");
  ExpectFieldRefused(
      ASubsystem(), [](S& s) { s.model = "a\nb"; }, "model");
  ExpectFieldRefused(
      ASubsystem(), [](S& s) { s.firmware = "123456789"; }, "firmware");
  ExpectFieldRefused(
      ASubsystem(), [](S& s) { s.max_nsid = 0; }, "max_nsid");
  ExpectFieldRefused(
      ASubsystem(), [](S& s) { s.max_nsid = kAllNamespaces; }, "max_nsid");
  SubsystemDescription longest = ASubsystem();
  longest.nqn = "nqn." + std::string(219, 'a');
  EXPECT_TRUE(Validate(longest).ok());
}

TEST(IdentifyTest, shouldRefuseNamespacesThatCannotBeTold) {
  using N = NamespaceDescription;
  ExpectFieldRefused(
      ANamespace(), [](N& n) { n.nsid = 0; }, "nsid");
  ExpectFieldRefused(
      ANamespace(), [](N& n) { n.nsid = kAllNamespaces; }, "nsid");
  ExpectFieldRefused(
      ANamespace(), [](N& n) { n.block_shift = 8; }, "block_shift");
  ExpectFieldRefused(
      ANamespace(), [](N& n) { n.block_shift = 17; }, "block_shift");
  ExpectFieldRefused(
      ANamespace(), [](N& n) { n.block_count = 0; }, "block_count");
  ExpectFieldRefused(
      ANamespace(), [](N& n) { n.block_count = uint64_t{1} << 52; }, "block_count");
  ExpectFieldRefused(
      ANamespace(), [](N& n) { n.uuid = n.nguid = {}, n.eui64 = {}; }, "uuid");
  ExpectFieldRefused(
      ANamespace(), [](N& n) { n.preferred_write_blocks = 65537; }, "preferred_write_blocks");
}

TEST(IdentifyTest, shouldRefuseControllersThatCannotBeTold) {
  using C = ControllerDescription;
  ExpectFieldRefused(
      Controller(), [](C& c) { c.cntlid = 0xfff0; }, "cntlid");
  ExpectFieldRefused(
      Controller(), [](C& c) { c.version = Version(1, 2, 0); }, "version");
  ExpectFieldRefused(
      Controller(), [](C& c) { c.max_commands = 1; }, "max_commands");
  ExpectFieldRefused(
      Controller(), [](C& c) { c.mdts = 13; }, "mdts");
  ExpectFieldRefused(
      Controller(), [](C& c) { c.ioccsz = 3; }, "ioccsz");
  ExpectFieldRefused(
      Controller(), [](C& c) { c.ioccsz = 0x10001; }, "ioccsz");
  ExpectFieldRefused(
      Controller(), [](C& c) { c.iorcsz = 0; }, "iorcsz");
  ExpectFieldRefused(
      Controller(), [](C& c) { c.kas = 0; }, "kas");
}

TEST(IdentifyTest, shouldLimitCapsulesAsItSays) {
  EXPECT_EQ(LimitsOf(Controller(), false).in_capsule_bytes, 8192u);
  EXPECT_EQ(LimitsOf(Controller(), true).in_capsule_bytes, 0u);
  EXPECT_EQ(LimitsOf(Controller(), true).max_transfer_bytes, 128u << 10);
  EXPECT_TRUE(LimitsOf(Controller(), true).admin_queue);
  EXPECT_FALSE(LimitsOf(Controller(), false).admin_queue);
  ControllerDescription controller;
  EXPECT_EQ(LimitsOf(controller, false).in_capsule_bytes, 0u);
  EXPECT_EQ(LimitsOf(controller, false).max_transfer_bytes, 0xffffffffu);
  controller.mdts = 12;
  EXPECT_EQ(LimitsOf(controller, false).max_transfer_bytes, 16u << 20);
}

// --- Identify
// -------------------------------------------------------------------------------------

TEST(IdentifyTest, shouldDescribeTheController) {
  const IdentifyController data = BuildIdentifyController(ASubsystem(), Controller());
  EXPECT_EQ(TextAt(data, 4, 20), "B4T0N" + std::string(15, ' '));
  EXPECT_EQ(TextAt(data, 24, 40), "Baton nvmed" + std::string(29, ' '));
  EXPECT_EQ(TextAt(data, 64, 8), "1.0     ");
  EXPECT_THAT(At(data, 76, 8), ElementsAreArray(Hex("03 05 02 01 00 04 01 00")));
  EXPECT_THAT(At(data, 92, 8), ElementsAreArray(Hex("00 01 00 00 01 00 00 00")));
  EXPECT_EQ(data.cntrltype, ControllerType::kIo);
  EXPECT_EQ(ToBytes(data)[111], 1);
  EXPECT_THAT(At(data, 256, 8), ElementsAreArray(Hex("00 00 03 03 03 06 00 00")));
  EXPECT_THAT(At(data, 320, 2), ElementsAre(10, 0));                    // KAS
  EXPECT_THAT(At(data, 512, 4), ElementsAre(0x66, 0x44, 0x80, 0));      // SQES, CQES, MAXCMD
  EXPECT_THAT(At(data, 516, 4), ElementsAre(16, 0, 0, 0));              // NN
  EXPECT_THAT(At(data, 520, 6), ElementsAre(0, 0, 0, 0, 0, 4));         // ONCS, FUSES, FNA, VWC
  EXPECT_THAT(At(data, 536, 4), ElementsAreArray(Hex("05 00 14 00")));  // SGLS: 0, 2, 18, 20
  EXPECT_EQ(TextAt(data, 768, 256), "nqn.2026-01.example:disk" + std::string(232, '\0'));
  EXPECT_THAT(At(data, 1792, 16), ElementsAreArray(Hex("04 02 00 00 01 00 00 00"
                                                       "00 00 00 01 00 00 00 00")));
  EXPECT_THAT(At(data, 2048, 2048), Each(0));
}

TEST(IdentifyTest, shouldTellWhatTheControllerCan) {
  ControllerDescription controller = Controller();
  controller.compare = true;
  EXPECT_EQ(BuildIdentifyController(ASubsystem(), controller).oncs, 0x01);
  controller.deallocate = true;
  EXPECT_EQ(BuildIdentifyController(ASubsystem(), controller).oncs, 0x05);
  controller.write_zeroes = true;
  EXPECT_EQ(BuildIdentifyController(ASubsystem(), controller).oncs, 0x0d);
  controller.volatile_write_cache = true;
  EXPECT_EQ(BuildIdentifyController(ASubsystem(), controller).vwc, 0x05);
  controller.traffic_keep_alive = true;
  EXPECT_EQ(BuildIdentifyController(ASubsystem(), controller).ctratt, 0x41u);
  controller.ioccsz = 4;
  EXPECT_EQ(BuildIdentifyController(ASubsystem(), controller).sgls, 0x00040005u);
}

TEST(IdentifyTest, shouldDescribeADiscoveryController) {
  SubsystemDescription subsystem = ASubsystem();
  subsystem.nqn = kDiscoveryNqn;
  ControllerDescription controller;
  controller.is_discovery = true;
  controller.cntlid = 9;
  controller.oaes = kAsyncEventDiscoveryChanged;
  controller.compare = controller.deallocate = controller.write_zeroes = true;
  const IdentifyController data = BuildIdentifyController(subsystem, controller);
  EXPECT_EQ(ToBytes(data)[111], 2);
  EXPECT_EQ(data.cntlid, 9);
  EXPECT_EQ(data.lpa, kLogPageExtendedData);
  EXPECT_THAT(At(data, 92, 4), ElementsAre(0, 0, 0, 0x80));
  EXPECT_THAT(At(data, 512, 2), ElementsAre(0, 0));
  EXPECT_THAT(At(data, 516, 10), Each(0));
  EXPECT_THAT(At(data, 536, 4), ElementsAreArray(Hex("05 00 04 00")));
  EXPECT_THAT(At(data, 1792, 8), Each(0));
  EXPECT_EQ(std::string(data.subnqn), kDiscoveryNqn);
}

TEST(IdentifyTest, shouldCutTextsThatAreTooLong) {
  SubsystemDescription subsystem;
  subsystem.nqn = std::string(300, 'n');
  subsystem.serial = std::string(30, 's');
  const IdentifyController data = BuildIdentifyController(subsystem, Controller());
  EXPECT_EQ(TextAt(data, 4, 21), std::string(20, 's') + " ");
  EXPECT_EQ(TextAt(data, 768, 257), std::string(255, 'n') + std::string(2, '\0'));
}

TEST(IdentifyTest, shouldDescribeTheCommandSet) {
  ControllerDescription controller = Controller();
  EXPECT_THAT(ToBytes(BuildIdentifyNvmController(controller)), Each(0));
  controller.wzsl = 8;
  controller.dmrl = 64;
  controller.dmrsl = 0x01020304;
  controller.dmsl = 0x1112131415161718;
  const IdentifyNvmController data = BuildIdentifyNvmController(controller);
  EXPECT_THAT(At(data, 0, 16), ElementsAreArray(Hex("00 08 00 40 04 03 02 01"
                                                    "18 17 16 15 14 13 12 11")));
}

TEST(IdentifyTest, shouldDescribeNamespaces) {
  NamespaceDescription description = ANamespace();
  const IdentifyNamespace data = BuildIdentifyNamespace(description);
  const Bytes count = Hex("06 05 04 03 02 01 00 00");
  for (const size_t offset : {0, 8, 16}) EXPECT_EQ(At(data, offset, 8), count);
  EXPECT_THAT(At(data, 24, 6), Each(0));
  EXPECT_EQ(ToBytes(data)[30], 1);  // NMIC
  EXPECT_EQ(ToBytes(data)[33], 0);  // DLFEAT
  EXPECT_THAT(At(data, 48, 16), ElementsAreArray(Hex("00 60 50 40 30 20 10 00"
                                                     "00 00 00 00 00 00 00 00")));
  EXPECT_EQ(ToBytes(data)[99], 0);  // NSATTR
  EXPECT_THAT(At(data, 104, 16), ElementsAreArray(description.nguid));
  EXPECT_THAT(At(data, 120, 8), ElementsAreArray(description.eui64));
  EXPECT_THAT(At(data, 128, 8), ElementsAreArray(Hex("00 00 0c 00 00 00 00 00")));
}

TEST(IdentifyTest, shouldTellWhatNamespacesCan) {
  NamespaceDescription description = ANamespace();
  description.shared = false;
  description.write_protected = true;
  description.write_zeroes = true;
  EXPECT_EQ(BuildIdentifyNamespace(description).dlfeat, 0);
  description.deallocate = true;
  description.preferred_write_blocks = 8;
  const IdentifyNamespace data = BuildIdentifyNamespace(description);
  EXPECT_EQ(data.nmic, 0);
  EXPECT_EQ(data.nsattr, 1);
  EXPECT_EQ(data.dlfeat, 0x09);
  EXPECT_EQ(data.nsfeat, 0x10);
  EXPECT_THAT(At(data, 64, 10), ElementsAre(7, 0, 7, 0, 7, 0, 7, 0, 7, 0));
  description.write_zeroes = false;
  EXPECT_EQ(BuildIdentifyNamespace(description).dlfeat, 0x01);
}

TEST(IdentifyTest, shouldListNamespaces) {
  const Bytes some = ToBytes(BuildNamespaceList({1, 2, 0x01020304}, 1));
  EXPECT_EQ(some.size(), 4096u);
  EXPECT_THAT(Bytes(some.begin(), some.begin() + 12),
              ElementsAreArray(Hex("02 00 00 00 04 03 02 01 00 00 00 00")));
  EXPECT_THAT(ToBytes(BuildNamespaceList({1, 2}, 2)), Each(0));
  EXPECT_THAT(ToBytes(BuildNamespaceList({1, 2}, 0xfffffffe)), Each(0));

  std::vector<uint32_t> many(1025);
  std::iota(many.begin(), many.end(), 1);
  const NamespaceList first = BuildNamespaceList(many, 0);
  EXPECT_EQ(first.nsid[1023], 1024u);
  const NamespaceList rest = BuildNamespaceList(many, first.nsid[1023]);
  EXPECT_EQ(rest.nsid[0], 1025u);
  EXPECT_EQ(rest.nsid[1], 0u);
}

TEST(IdentifyTest, shouldListTheIdentifiersOfANamespace) {
  const auto all = BuildNamespaceDescriptors(ANamespace());
  const Bytes expected =
      Hex("01 08 00 00 50 51 52 53 54 55 56 57"
          "02 10 00 00 30 31 32 33 34 35 36 37 38 39 3a 3b 3c 3d 3e 3f"
          "03 10 00 00 10 11 12 13 14 15 16 17 18 19 1a 1b 1c 1d 1e 1f"
          "00 00 00 00");
  EXPECT_THAT(Bytes(all.begin(), all.begin() + static_cast<ptrdiff_t>(expected.size())),
              ElementsAreArray(expected));

  NamespaceDescription description = ANamespace();
  description.eui64 = {};
  description.nguid = {};
  const auto one = BuildNamespaceDescriptors(description);
  EXPECT_THAT(Bytes(one.begin(), one.begin() + 2), ElementsAre(3, 16));
  EXPECT_THAT(Bytes(one.begin() + 20, one.end()), Each(0));
}

// --- Log pages
// ------------------------------------------------------------------------------------

TEST(IdentifyTest, shouldReadWhatGetLogPageAsksFor) {
  const auto command = FromHex<SubmissionEntry>(
      "02 40 00 00 ff ff ff ff" + std::string(64, '0') +
      "05 82 ff ff 01 00 00 00  00 10 00 00 02 00 00 00  00 00 80 00 00 00 00 00");
  const LogPageRequest request = LogPageRequestOf(command);
  EXPECT_EQ(request.page, LogPageId::kCommandsSupported);
  EXPECT_EQ(request.specific, 2);
  EXPECT_TRUE(request.retain_async_event);
  EXPECT_TRUE(request.offset_is_index);
  EXPECT_EQ(request.offset, 0x200001000u);
  EXPECT_EQ(request.length, 0x20000u * 4);
  EXPECT_EQ(DataLength(command, true, 0), request.length);

  const LogPageRequest least = LogPageRequestOf({});
  EXPECT_EQ(least.length, 4u);
  EXPECT_EQ(least.offset, 0u);
  EXPECT_FALSE(least.retain_async_event);
  EXPECT_FALSE(least.offset_is_index);
}

TEST(IdentifyTest, shouldCopyPiecesOfAPage) {
  Bytes page(16);
  std::iota(page.begin(), page.end(), uint8_t{1});
  const auto copy = [&](uint64_t offset, size_t length) {
    LogPageRequest request;
    request.offset = offset;
    Bytes out(length, 0xee);
    EXPECT_EQ(CopyLogPage(page, request, absl::MakeSpan(out)), StatusCode::kSuccess);
    return out;
  };
  EXPECT_EQ(copy(0, 16), page);
  EXPECT_THAT(copy(4, 4), ElementsAre(5, 6, 7, 8));
  EXPECT_THAT(copy(12, 8), ElementsAre(13, 14, 15, 16, 0, 0, 0, 0));
  EXPECT_THAT(copy(16, 4), Each(0));
  EXPECT_THAT(copy(0, 0), testing::IsEmpty());
  EXPECT_EQ(copy(0, 20).size(), 20u);
}

TEST(IdentifyTest, shouldRefusePiecesOutsideThePage) {
  const Bytes page(16, 1);
  const auto refuse = [&](LogPageRequest request) {
    Bytes out(8, 0xee);
    EXPECT_EQ(CopyLogPage(page, request, absl::MakeSpan(out)), StatusCode::kInvalidField);
    EXPECT_THAT(out, Each(0xee));
  };
  LogPageRequest request;
  for (const uint64_t offset :
       {uint64_t{20}, uint64_t{2}, uint64_t{0x100000000}, ~uint64_t{0}, ~uint64_t{3}}) {
    request.offset = offset;
    refuse(request);
  }
  request.offset = 0;
  request.offset_is_index = true;
  refuse(request);
}

TEST(IdentifyTest, shouldTellItsHealth) {
  HealthDescription health;
  health.temperature_kelvin = 0x0140;
  health.bytes_read = 512'000;
  health.bytes_written = 512'001;
  health.host_read_commands = 3;
  health.host_write_commands = 4;
  health.power_cycles = 6;
  health.power_on_hours = 7;
  health.unsafe_shutdowns = 8;
  health.media_errors = 9;
  health.error_log_entries = 10;
  const Bytes log = ToBytes(BuildHealthLog(health));
  EXPECT_THAT(Bytes(log.begin(), log.begin() + 6), ElementsAre(0, 0x40, 0x01, 100, 10, 0));
  Bytes counters;
  for (size_t offset = 32; offset < 192; offset += 16) counters.push_back(log[offset]);
  EXPECT_THAT(counters, ElementsAre(1, 2, 3, 4, 0, 6, 7, 8, 9, 10));
  health.bytes_read = ~uint64_t{0};
  EXPECT_EQ(BuildHealthLog(health).data_units_read[0], 36028797018964u);
}

TEST(IdentifyTest, shouldTellItsFirmware) {
  const FirmwareSlotLog log = BuildFirmwareSlotLog(ASubsystem());
  EXPECT_EQ(ToBytes(log)[0], 1);
  EXPECT_EQ(TextAt(log, 8, 8), "1.0     ");
  EXPECT_THAT(At(log, 16, 496), Each(0));
}

TEST(IdentifyTest, shouldListItsCommands) {
  const auto supported = [](const CommandsSupportedLog& log) {
    std::vector<int> opcodes;
    for (int i = 0; i < 256; ++i) {
      if (log.admin[i] != 0) opcodes.push_back(i);
    }
    for (int i = 0; i < 256; ++i) {
      if (log.io[i] != 0) opcodes.push_back(1000 + i);
    }
    return opcodes;
  };
  ControllerDescription controller = Controller();
  EXPECT_THAT(supported(BuildCommandsSupportedLog(controller)),
              ElementsAre(0x02, 0x06, 0x08, 0x09, 0x0a, 0x0c, 0x18, 1000, 1001, 1002));
  controller.compare = controller.write_zeroes = controller.deallocate = true;
  const CommandsSupportedLog all = BuildCommandsSupportedLog(controller);
  EXPECT_THAT(supported(all), ElementsAre(0x02, 0x06, 0x08, 0x09, 0x0a, 0x0c, 0x18, 1000, 1001,
                                          1002, 1005, 1008, 1009));
  EXPECT_EQ(all.io[1], 3u);  // supported, and changes blocks
  EXPECT_EQ(all.io[2], 1u);
  EXPECT_THAT(At(all, 1024 + 4, 4), ElementsAre(3, 0, 0, 0));
  controller.is_discovery = true;
  EXPECT_THAT(supported(BuildCommandsSupportedLog(controller)),
              ElementsAre(0x02, 0x06, 0x09, 0x0a, 0x0c, 0x18));
}

TEST(IdentifyTest, shouldListChangedNamespaces) {
  EXPECT_THAT(ToBytes(BuildChangedNamespaceList({})), Each(0));
  EXPECT_EQ(BuildChangedNamespaceList({3, 5}).nsid[1], 5u);
  std::vector<uint32_t> many(1024);
  std::iota(many.begin(), many.end(), 1);
  EXPECT_EQ(BuildChangedNamespaceList(many).nsid[1023], 1024u);
  many.push_back(1025);
  const NamespaceList any = BuildChangedNamespaceList(many);
  EXPECT_EQ(any.nsid[0], 0xffffffffu);
  EXPECT_THAT(At(any, 4, 4092), Each(0));
}

TEST(IdentifyTest, shouldListErrors) {
  ControllerDescription controller = Controller();
  controller.elpe = 2;
  ErrorLogEntry entry = {};
  entry.error_count = 5;
  entry.status = StatusField(StatusCode::kLbaOutOfRange, true);
  const std::vector<ErrorLogEntry> one = BuildErrorLog(controller, {&entry, 1});
  ASSERT_EQ(one.size(), 3u);
  EXPECT_EQ(BytesOf(one).size(), 192u);
  EXPECT_EQ(one[0].error_count, 5u);
  EXPECT_THAT(ToBytes(one[1]), Each(0));
  const std::vector<ErrorLogEntry> many(7, entry);
  EXPECT_EQ(BuildErrorLog(controller, many).size(), 3u);
}

DiscoveryDescription Entry() {
  DiscoveryDescription entry;
  entry.subnqn = "nqn.2026-01.example:disk";
  entry.traddr = "10.0.0.1";
  entry.trsvcid = "4420";
  entry.portid = 1;
  entry.provider = RdmaProvider::kRoceV2;
  return entry;
}

TEST(IdentifyTest, shouldTellWhatCanBeDiscovered) {
  DiscoveryDescription itself = Entry();
  itself.subtype = SubsystemType::kCurrentDiscovery;
  itself.subnqn = kDiscoveryNqn;
  const Bytes page = BuildDiscoveryLog(0x0102030405060708, {Entry(), itself});
  ASSERT_EQ(page.size(), 3 * 1024u);
  EXPECT_THAT(Bytes(page.begin(), page.begin() + 20),
              ElementsAreArray(Hex("08 07 06 05 04 03 02 01 02 00 00 00 00 00 00 00 00 00 00 00")));
  EXPECT_THAT(Bytes(page.begin() + 20, page.begin() + 1024), Each(0));
  const auto text = [&](size_t offset, size_t length) {
    const auto at = page.begin() + 1024 + static_cast<ptrdiff_t>(offset);
    return std::string(at, at + static_cast<ptrdiff_t>(length));
  };
  // TRTYPE, ADRFAM, SUBTYPE, TREQ, PORTID, CNTLID, ASQSZ, EFLAGS.
  EXPECT_THAT(Bytes(page.begin() + 1024, page.begin() + 1036),
              ElementsAreArray(Hex("01 01 02 02 01 00 ff ff 20 00 00 00")));
  EXPECT_EQ(text(32, 32), "4420" + std::string(28, ' '));
  EXPECT_EQ(text(256, 256), "nqn.2026-01.example:disk" + std::string(232, '\0'));
  EXPECT_EQ(text(512, 256), "10.0.0.1" + std::string(248, ' '));
  EXPECT_EQ(text(768, 4), std::string("\x01\x04\x01\x00", 4));
  EXPECT_EQ(page[2048 + 2], 3);
  EXPECT_EQ(BuildDiscoveryLog(1, {}).size(), 1024u);
}

TEST(IdentifyTest, shouldRefuseEntriesThatCannotBeTold) {
  using D = DiscoveryDescription;
  ExpectFieldRefused(
      Entry(), [](D& d) { d.subnqn = "disk"; }, "subnqn");
  ExpectFieldRefused(
      Entry(), [](D& d) { d.traddr = ""; }, "traddr");
  ExpectFieldRefused(
      Entry(), [](D& d) { d.traddr = std::string(256, '1'); }, "traddr");
  ExpectFieldRefused(
      Entry(), [](D& d) { d.trsvcid = ""; }, "trsvcid");
  ExpectFieldRefused(
      Entry(), [](D& d) { d.trsvcid = std::string(32, '1'); }, "trsvcid");
  ExpectFieldRefused(
      Entry(), [](D& d) { d.max_admin_queue_entries = 31; }, "max_admin_queue_entries");
}

}  // namespace
}  // namespace baton::nvmed
