#include "worker/examples/nvmed/identify.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "lib/base/status.h"
#include "lib/base/utf8.h"

namespace baton::nvmed {
namespace {

constexpr uint8_t kMinBlockShift = 9;            // hosts do not get formats with smaller blocks
constexpr uint8_t kMaxBlockShift = 16;           // 64 KiB
constexpr uint8_t kMaxMdts = 12;                 // 16 MiB: as much as a keyed descriptor names
constexpr uint32_t kMaxCapsuleUnits = 1u << 16;  // IOCCSZ: 1 MiB
constexpr uint32_t kUnknownNamespaceChanges = 0xffffffff;

absl::Status Refuse(std::string_view field, std::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(absl::string_view(field.data(), field.size()),
                                                 ": ",
                                                 absl::string_view(what.data(), what.size())));
}

absl::Status CheckAscii(std::string_view field, std::string_view text, size_t max_bytes) {
  const bool printable =
      std::all_of(text.begin(), text.end(), [](char c) { return c >= 0x20 && c <= 0x7e; });
  if (!printable) return Refuse(field, "printable ASCII only");
  if (text.size() > max_bytes) {
    return Refuse(field, absl::StrCat(text.size(), " characters: ", max_bytes, " fit"));
  }
  return absl::OkStatus();
}

absl::Status CheckNqn(std::string_view field, std::string_view nqn) {
  if (nqn.substr(0, 4) != "nqn.") return Refuse(field, "does not begin with \"nqn.\"");
  if (nqn.size() > kMaxNqnBytes) {
    return Refuse(field, absl::StrCat(nqn.size(), " bytes: ", kMaxNqnBytes, " at most"));
  }
  if (nqn.find('\0') != std::string_view::npos || !IsUtf8(nqn)) {
    return Refuse(field, "not a text in UTF-8");
  }
  return absl::OkStatus();
}

template <size_t kBytes>
bool IsZero(const std::array<uint8_t, kBytes>& bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](uint8_t byte) { return byte == 0; });
}

// Pads with blanks, or cuts.
template <size_t kBytes>
void SetAscii(char (&field)[kBytes], std::string_view text) {
  std::memset(field, ' ', kBytes);
  std::memcpy(field, text.data(), std::min(text.size(), kBytes));
}

// Ends the text with a NUL, and cuts it if necessary.
template <size_t kBytes>
void SetText(char (&field)[kBytes], std::string_view text) {
  std::memset(field, 0, kBytes);
  std::memcpy(field, text.data(), std::min(text.size(), kBytes - 1));
}

uint16_t OptionalCommands(const ControllerDescription& controller) {
  return static_cast<uint16_t>((controller.compare ? kOptionalCompare : 0) |
                               (controller.deallocate ? kOptionalDatasetManagement : 0) |
                               (controller.write_zeroes ? kOptionalWriteZeroes : 0));
}

// Fills in the fields that are 0 for a discovery controller.
void DescribeIo(const SubsystemDescription& subsystem, const ControllerDescription& controller,
                IdentifyController* data) {
  data->cmic = kCmicManyPorts | kCmicManyControllers;
  data->acl = controller.acl;
  data->sqes = kIoSqEntryShift << 4 | kIoSqEntryShift;
  data->cqes = kIoCqEntryShift << 4 | kIoCqEntryShift;
  data->nn = subsystem.max_nsid;
  data->mnan = subsystem.max_nsid;
  data->oncs = OptionalCommands(controller);
  // Flush is for one namespace at a time, with a cache and without.
  data->vwc = static_cast<uint8_t>((controller.volatile_write_cache ? kWriteCachePresent : 0) |
                                   kWriteCacheNoBroadcastFlush);
  data->ioccsz = controller.ioccsz;
  data->iorcsz = controller.iorcsz;
}

uint64_t Blocks(uint64_t bytes, uint64_t block) { return bytes / block + (bytes % block != 0); }

uint8_t* AppendIdentifier(uint8_t* at, NamespaceIdType type, absl::Span<const uint8_t> identifier) {
  const bool none =
      std::all_of(identifier.begin(), identifier.end(), [](uint8_t byte) { return byte == 0; });
  if (none) return at;
  const NamespaceDescriptorHeader header = {type, static_cast<uint8_t>(identifier.size()), {}};
  std::memcpy(at, &header, sizeof(header));
  std::memcpy(at + sizeof(header), identifier.data(), identifier.size());
  return at + sizeof(header) + identifier.size();
}

}  // namespace

absl::Status Validate(const SubsystemDescription& subsystem) {
  BATON_RETURN_IF_ERROR(CheckNqn("nqn", subsystem.nqn));
  BATON_RETURN_IF_ERROR(CheckAscii("serial", subsystem.serial, kSerialBytes));
  BATON_RETURN_IF_ERROR(CheckAscii("model", subsystem.model, kModelBytes));
  BATON_RETURN_IF_ERROR(CheckAscii("firmware", subsystem.firmware, kFirmwareBytes));
  if (subsystem.max_nsid == 0 || subsystem.max_nsid >= kAllNamespaces - 1) {
    return Refuse("max_nsid", absl::StrCat(subsystem.max_nsid, " is none"));
  }
  return absl::OkStatus();
}

absl::Status Validate(const NamespaceDescription& description) {
  if (description.nsid == 0 || description.nsid >= kAllNamespaces - 1) {
    return Refuse("nsid", absl::StrCat(description.nsid, " is no namespace"));
  }
  if (description.block_shift < kMinBlockShift || description.block_shift > kMaxBlockShift) {
    return Refuse("block_shift", absl::StrCat(description.block_shift, " is not between ",
                                              kMinBlockShift, " and ", kMaxBlockShift));
  }
  if (description.block_count == 0) return Refuse("block_count", "0: it has no blocks");
  if (description.block_count > std::numeric_limits<uint64_t>::max() >> description.block_shift) {
    return Refuse("block_count", "more bytes than 64 bits can count");
  }
  if (IsZero(description.uuid) && IsZero(description.nguid) && IsZero(description.eui64)) {
    return Refuse("uuid", "a namespace has an identifier: this one, nguid or eui64");
  }
  if (description.preferred_write_blocks > 1u << 16) {
    return Refuse("preferred_write_blocks",
                  absl::StrCat(description.preferred_write_blocks, ": 65536 at most"));
  }
  return absl::OkStatus();
}

absl::Status Validate(const ControllerDescription& controller) {
  if (controller.cntlid > kMaxControllerId) {
    return Refuse("cntlid", absl::StrCat(controller.cntlid, ": ", kMaxControllerId, " at most"));
  }
  if (controller.version < Version(1, 2, 1)) {
    return Refuse("version", "older than NVMe over Fabrics (1.2.1)");
  }
  if (controller.max_commands < 2) return Refuse("max_commands", "2 at least");
  if (controller.mdts > kMaxMdts) {
    return Refuse("mdts", absl::StrCat(controller.mdts, ": ", kMaxMdts, " at most"));
  }
  if (controller.ioccsz < 4 || controller.ioccsz > kMaxCapsuleUnits) {
    return Refuse("ioccsz",
                  absl::StrCat(controller.ioccsz, " is not between 4 and ", kMaxCapsuleUnits));
  }
  if (controller.iorcsz != 1) return Refuse("iorcsz", "responses have no data: 1");
  if (controller.kas == 0) return Refuse("kas", "0: fabrics need keep alive");
  return absl::OkStatus();
}

CapsuleLimits LimitsOf(const ControllerDescription& controller, bool admin_queue) {
  CapsuleLimits limits;
  limits.admin_queue = admin_queue;
  limits.in_capsule_bytes =
      admin_queue ? 0 : controller.ioccsz * 16 - uint32_t{sizeof(SubmissionEntry)};
  limits.max_transfer_bytes = controller.mdts == 0 ? std::numeric_limits<uint32_t>::max()
                                                   : 1u << (kPageShift + controller.mdts);
  return limits;
}

IdentifyController BuildIdentifyController(const SubsystemDescription& subsystem,
                                           const ControllerDescription& controller) {
  IdentifyController data = {};
  data.vid = subsystem.vendor_id;
  data.ssvid = subsystem.vendor_id;
  SetAscii(data.sn, subsystem.serial);
  SetAscii(data.mn, subsystem.model);
  SetAscii(data.fr, subsystem.firmware);
  std::copy(subsystem.ieee_oui.begin(), subsystem.ieee_oui.end(), data.ieee);
  data.mdts = controller.mdts;
  data.cntlid = controller.cntlid;
  data.ver = controller.version;
  data.oaes = controller.oaes;
  data.ctratt =
      kControllerLongHostId | (controller.traffic_keep_alive ? kControllerTrafficKeepAlive : 0);
  data.cntrltype = controller.is_discovery ? ControllerType::kDiscovery : ControllerType::kIo;
  data.aerl = controller.aerl;
  data.frmw = kFirmwareFirstSlotReadOnly | 1 << kFirmwareSlotsShift;
  data.lpa = static_cast<uint8_t>(kLogPageExtendedData |
                                  (controller.is_discovery ? 0 : kLogPageCommandsSupported));
  data.elpe = controller.elpe;
  data.kas = controller.kas;
  data.maxcmd = controller.max_commands;
  data.sgls = kSglsSupported | kSglsKeyed | kSglsOversized |
              (controller.ioccsz > 4 ? kSglsInCapsuleOffset : 0);
  SetText(data.subnqn, subsystem.nqn);
  data.msdbd = 1;
  if (!controller.is_discovery) DescribeIo(subsystem, controller, &data);
  return data;
}

IdentifyNvmController BuildIdentifyNvmController(const ControllerDescription& controller) {
  IdentifyNvmController data = {};
  data.wzsl = controller.wzsl;
  data.dmrl = controller.dmrl;
  data.dmrsl = controller.dmrsl;
  data.dmsl = controller.dmsl;
  return data;
}

IdentifyNamespace BuildIdentifyNamespace(const NamespaceDescription& description) {
  IdentifyNamespace data = {};
  data.nsze = description.block_count;
  data.ncap = description.block_count;
  data.nuse = description.block_count;
  data.nmic = description.shared ? kNamespaceShared : 0;
  if (description.deallocate) {
    data.dlfeat = static_cast<uint8_t>(kDeallocatedReadsZero |
                                       (description.write_zeroes ? kDeallocatedByWriteZeroes : 0));
  }
  data.nvmcap[0] = description.block_count << description.block_shift;
  if (description.preferred_write_blocks != 0) {
    data.nsfeat = kNsfeatOptimalPerformance;
    const auto blocks = static_cast<uint16_t>(description.preferred_write_blocks - 1);
    data.npwg = data.npwa = data.npdg = data.npda = data.nows = blocks;
  }
  data.nsattr = description.write_protected ? 1 : 0;
  std::copy(description.nguid.begin(), description.nguid.end(), data.nguid);
  std::copy(description.eui64.begin(), description.eui64.end(), data.eui64);
  data.lbaf[0].lbads = description.block_shift;
  return data;
}

NamespaceList BuildNamespaceList(absl::Span<const uint32_t> nsids, uint32_t after) {
  NamespaceList list = {};
  size_t used = 0;
  for (const uint32_t nsid : nsids) {
    if (nsid > after && used < NamespaceList::kEntries) list.nsid[used++] = nsid;
  }
  return list;
}

std::array<uint8_t, kIdentifyBytes> BuildNamespaceDescriptors(
    const NamespaceDescription& description) {
  std::array<uint8_t, kIdentifyBytes> data = {};
  uint8_t* at = data.data();
  at = AppendIdentifier(at, NamespaceIdType::kEui64, description.eui64);
  at = AppendIdentifier(at, NamespaceIdType::kNguid, description.nguid);
  AppendIdentifier(at, NamespaceIdType::kUuid, description.uuid);
  return data;
}

LogPageRequest LogPageRequestOf(const SubmissionEntry& command) {
  const auto get = ViewOf<GetLogPageCommand>(command);
  LogPageRequest request;
  request.page = static_cast<LogPageId>(get.lid);
  request.specific = get.lsp_rae & static_cast<uint8_t>(~kLogRetainAsyncEvent);
  request.retain_async_event = (get.lsp_rae & kLogRetainAsyncEvent) != 0;
  request.offset_is_index = (get.ot & kLogIndexOffset) != 0;
  request.offset = uint64_t{get.lpou} << 32 | get.lpol;
  request.length = ((uint64_t{get.numdu} << 16 | get.numdl) + 1) * 4;
  return request;
}

StatusCode CopyLogPage(absl::Span<const uint8_t> page, const LogPageRequest& request,
                       absl::Span<uint8_t> out) {
  if (request.offset_is_index || request.offset % 4 != 0 || request.offset > page.size()) {
    return StatusCode::kInvalidField;
  }
  const absl::Span<const uint8_t> rest = page.subspan(request.offset, out.size());
  std::copy(rest.begin(), rest.end(), out.begin());
  std::fill(out.begin() + static_cast<ptrdiff_t>(rest.size()), out.end(), uint8_t{0});
  return StatusCode::kSuccess;
}

HealthLog BuildHealthLog(const HealthDescription& health) {
  constexpr uint64_t kDataUnit = 512'000;
  HealthLog log = {};
  log.composite_temperature[0] = static_cast<uint8_t>(health.temperature_kelvin);
  log.composite_temperature[1] = static_cast<uint8_t>(health.temperature_kelvin >> 8);
  log.available_spare = 100;
  log.available_spare_threshold = 10;
  log.data_units_read[0] = Blocks(health.bytes_read, kDataUnit);
  log.data_units_written[0] = Blocks(health.bytes_written, kDataUnit);
  log.host_read_commands[0] = health.host_read_commands;
  log.host_write_commands[0] = health.host_write_commands;
  log.power_cycles[0] = health.power_cycles;
  log.power_on_hours[0] = health.power_on_hours;
  log.unsafe_shutdowns[0] = health.unsafe_shutdowns;
  log.media_errors[0] = health.media_errors;
  log.error_log_entries[0] = health.error_log_entries;
  return log;
}

FirmwareSlotLog BuildFirmwareSlotLog(const SubsystemDescription& subsystem) {
  FirmwareSlotLog log = {};
  log.afi = 1;
  SetAscii(log.frs[0], subsystem.firmware);
  return log;
}

CommandsSupportedLog BuildCommandsSupportedLog(const ControllerDescription& controller) {
  CommandsSupportedLog log = {};
  const auto admin = [&](AdminOpcode opcode) {
    log.admin[static_cast<uint8_t>(opcode)] = kCommandSupported;
  };
  const auto io = [&](IoOpcode opcode, uint32_t effects) {
    log.io[static_cast<uint8_t>(opcode)] = kCommandSupported | effects;
  };
  for (const AdminOpcode opcode :
       {AdminOpcode::kGetLogPage, AdminOpcode::kIdentify, AdminOpcode::kSetFeatures,
        AdminOpcode::kGetFeatures, AdminOpcode::kAsyncEventRequest, AdminOpcode::kKeepAlive}) {
    admin(opcode);
  }
  if (controller.is_discovery) return log;
  admin(AdminOpcode::kAbort);
  io(IoOpcode::kRead, 0);
  io(IoOpcode::kFlush, 0);
  io(IoOpcode::kWrite, kCommandChangesBlocks);
  if (controller.compare) io(IoOpcode::kCompare, 0);
  if (controller.write_zeroes) io(IoOpcode::kWriteZeroes, kCommandChangesBlocks);
  if (controller.deallocate) io(IoOpcode::kDatasetManagement, kCommandChangesBlocks);
  return log;
}

NamespaceList BuildChangedNamespaceList(absl::Span<const uint32_t> nsids) {
  if (nsids.size() <= NamespaceList::kEntries) return BuildNamespaceList(nsids, 0);
  NamespaceList list = {};
  list.nsid[0] = kUnknownNamespaceChanges;
  return list;
}

std::vector<ErrorLogEntry> BuildErrorLog(const ControllerDescription& controller,
                                         absl::Span<const ErrorLogEntry> entries) {
  std::vector<ErrorLogEntry> log(size_t{controller.elpe} + 1);
  std::copy_n(entries.begin(), std::min(entries.size(), log.size()), log.begin());
  return log;
}

absl::Status Validate(const DiscoveryDescription& entry) {
  BATON_RETURN_IF_ERROR(CheckNqn("subnqn", entry.subnqn));
  // Room is kept for one blank at the end, up to which readers take the text.
  BATON_RETURN_IF_ERROR(CheckAscii("traddr", entry.traddr, sizeof(DiscoveryEntry::traddr) - 1));
  BATON_RETURN_IF_ERROR(CheckAscii("trsvcid", entry.trsvcid, sizeof(DiscoveryEntry::trsvcid) - 1));
  if (entry.traddr.empty()) return Refuse("traddr", "empty");
  if (entry.trsvcid.empty()) return Refuse("trsvcid", "empty");
  if (entry.max_admin_queue_entries < kMinAdminQueueEntries) {
    return Refuse("max_admin_queue_entries", absl::StrCat(entry.max_admin_queue_entries, ": ",
                                                          kMinAdminQueueEntries, " at least"));
  }
  return absl::OkStatus();
}

std::vector<uint8_t> BuildDiscoveryLog(uint64_t generation,
                                       absl::Span<const DiscoveryDescription> entries) {
  std::vector<uint8_t> page(sizeof(DiscoveryLogHeader) + entries.size() * sizeof(DiscoveryEntry));
  DiscoveryLogHeader header = {};
  header.genctr = generation;
  header.numrec = entries.size();
  std::memcpy(page.data(), &header, sizeof(header));
  uint8_t* at = page.data() + sizeof(header);
  for (const DiscoveryDescription& description : entries) {
    DiscoveryEntry entry = {};
    entry.trtype = TransportType::kRdma;
    entry.adrfam = description.adrfam;
    entry.subtype = description.subtype;
    entry.treq = kTreqNoSecureChannel;
    entry.portid = description.portid;
    entry.cntlid = kDynamicController;
    entry.asqsz = description.max_admin_queue_entries;
    SetAscii(entry.trsvcid, description.trsvcid);
    SetText(entry.subnqn, description.subnqn);
    SetAscii(entry.traddr, description.traddr);
    entry.rdma_qptype = kRdmaReliableConnected;
    entry.rdma_prtype = description.provider;
    entry.rdma_cms = kRdmaCm;
    std::memcpy(at, &entry, sizeof(entry));
    at += sizeof(entry);
  }
  return page;
}

}  // namespace baton::nvmed
