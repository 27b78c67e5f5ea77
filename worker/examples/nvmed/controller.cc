#include "worker/examples/nvmed/controller.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "worker/examples/nvmed/capsule.h"
#include "worker/examples/nvmed/io_command.h"

namespace baton::nvmed {
namespace {

constexpr uint8_t kReadyTimeout = 15;  // 7.5 s; the controller is ready at once
constexpr uint32_t kWatchedEvents = kAsyncEventNamespaceChanged;
constexpr uint32_t kVersion = Version(1, 4, 0);
// ControllerState::namespaces_changed.
constexpr uint32_t kNotChanged = 0, kChanged = 1, kChangeTold = 2;

// A discovery controller accepts any sizes of the entries of I/O queues, which it does not have.
bool IsSupportedConfiguration(uint32_t cc, bool discovery) {
  const bool sizes =
      CcIoSqEntrySize(cc) == kIoSqEntryShift && CcIoCqEntrySize(cc) == kIoCqEntryShift;
  return CcCommandSet(cc) == 0 && CcPageSize(cc) == 0 && CcArbitration(cc) == 0 &&
         (sizes || discovery);
}

NamespaceDescription Describe(const Namespace& from) {
  NamespaceDescription to;
  to.nsid = from.id;
  to.block_count = from.blocks;
  to.block_shift = static_cast<uint8_t>(from.block_shift);
  to.uuid = from.uuid;
  to.write_protected = from.backing->read_only();
  to.write_zeroes = to.deallocate = !from.backing->read_only();
  return to;
}

template <typename T>
void Copy(const T& from, absl::Span<uint8_t> data) {
  std::memcpy(data.data(), &from, std::min(data.size(), sizeof(from)));
}

}  // namespace

Subsystem* Controller::subsystem() const {
  return state_.discovery != 0 ? nullptr : target_.Find(TextIn(state_.subsystem_nqn));
}

Answer Controller::Execute(const SubmissionEntry& command, uint16_t slot, const Totals& totals,
                           absl::Span<uint8_t> data) {
  const auto opcode = static_cast<AdminOpcode>(command.opcode);
  if (!enabled() && opcode != AdminOpcode::kKeepAlive) {
    return Refuse(StatusCode::kCommandSequenceError);
  }
  switch (opcode) {
    case AdminOpcode::kIdentify:
      return Identify(command, data);
    case AdminOpcode::kGetLogPage:
      return GetLogPage(command, totals, data);
    case AdminOpcode::kGetFeatures:
      return GetFeatures(command, data);
    case AdminOpcode::kSetFeatures:
      return SetFeatures(command);
    case AdminOpcode::kAsyncEventRequest:
      return HoldEvent(command, slot);
    case AdminOpcode::kAbort:
      return Abort(command);
    case AdminOpcode::kKeepAlive:
      return KeepAlive();
    default:
      return Refuse(StatusCode::kInvalidOpcode);
  }
}

// ---------------------------------------------------------------- properties

Answer Controller::GetProperty(const SubmissionEntry& command) const {
  const auto property = ViewOf<PropertyCommand>(command);
  const uint8_t size = property.attrib & kPropertySizeMask;
  switch (property.ofst) {
    case kPropertyCap:
      if (size != kProperty8Bytes) break;
      return Return(Capabilities(options_.queue_entries, kReadyTimeout));
    case kPropertyVs:
      if (size != kProperty4Bytes) break;
      return Return(kVersion);
    case kPropertyCc:
      if (size != kProperty4Bytes) break;
      return Return(state_.configuration);
    case kPropertyCsts:
      if (size != kProperty4Bytes) break;
      return Return(state_.status);
    default:
      break;
  }
  return Refuse(StatusCode::kInvalidField);
}

Answer Controller::SetProperty(const SubmissionEntry& command) {
  const auto property = ViewOf<PropertyCommand>(command);
  if (property.ofst != kPropertyCc || (property.attrib & kPropertySizeMask) != kProperty4Bytes) {
    return Refuse(StatusCode::kInvalidField);
  }
  const uint32_t before = state_.configuration;
  const auto cc = static_cast<uint32_t>(property.value);
  state_.configuration = cc;
  registry_.Touch();
  Answer answer;
  if (CcEnable(cc) && !CcEnable(before)) {
    state_.status = IsSupportedConfiguration(cc, state_.discovery != 0) ? kCstsReady : kCstsFatal;
  } else if (!CcEnable(cc) && CcEnable(before)) {
    // A reset: held requests end without an answer.
    state_.status = 0;
    state_.event_configuration = 0;
    state_.namespaces_changed = kNotChanged;  // the host will look at all namespaces
    answer.released = state_.held_count;
    std::copy_n(state_.held, state_.held_count, answer.release);
    state_.held_count = 0;
  }
  if (CcShutdown(cc) != kShutdownNone && CcShutdown(before) == kShutdownNone) {
    state_.status = (state_.status & ~kCstsShutdownMask) | kCstsShutdownComplete;
  } else if (CcShutdown(cc) == kShutdownNone) {
    state_.status &= ~kCstsShutdownMask;
  }
  return answer;
}

// ---------------------------------------------------------------- Identify

SubsystemDescription Controller::DescribeSubsystem() const {
  SubsystemDescription description;
  description.firmware = options_.firmware;
  const Subsystem* of = subsystem();
  if (of == nullptr) {
    description.nqn = kDiscoveryNqn;
    description.serial = "discovery";
    description.model = "Baton nvmed";
    return description;
  }
  description.nqn = of->nqn;
  description.serial = of->serial;
  description.model = of->model;
  description.max_nsid = kMaxNamespaceId;
  return description;
}

ControllerDescription Controller::DescribeController() const {
  ControllerDescription description;
  description.is_discovery = state_.discovery != 0;
  description.cntlid = state_.id;
  description.version = kVersion;
  description.max_commands = options_.queue_entries;
  uint8_t pages_shift = 0;
  while ((uint32_t{2} << (pages_shift + kPageShift)) <= options_.max_transfer_bytes) ++pages_shift;
  description.mdts = pages_shift;
  description.ioccsz = (64 + options_.in_capsule_bytes) / 16;
  description.aerl = kMaxHeldEvents - 1;
  description.elpe = kErrorEntries - 1;
  if (const Subsystem* of = subsystem(); of != nullptr) {
    description.oaes = kWatchedEvents;
    for (const Namespace& one : of->namespaces) {
      description.volatile_write_cache |= one.backing->volatile_cache();
      if (!one.backing->prompt()) continue;
      description.dmrl = kPromptRanges;
      description.dmrsl = kPromptRangeBlocks;
      description.dmsl = kPromptBlocks;
    }
    description.write_zeroes = description.deallocate = true;
  }
  return description;
}

Answer Controller::Identify(const SubmissionEntry& command, absl::Span<uint8_t> data) const {
  const auto identify = ViewOf<IdentifyCommand>(command);
  const auto cns = static_cast<IdentifyCns>(identify.cns);
  std::memset(data.data(), 0, data.size());
  if (cns == IdentifyCns::kController) {
    Copy(BuildIdentifyController(DescribeSubsystem(), DescribeController()), data);
    return Answer();
  }
  Subsystem* of = subsystem();
  if (of == nullptr) return Refuse(StatusCode::kInvalidField);
  const Namespace* space = of->Find(command.nsid);
  switch (cns) {
    case IdentifyCns::kNamespace:
      if (command.nsid == 0 || command.nsid > kMaxNamespaceId) {
        return Refuse(StatusCode::kInvalidNamespaceOrFormat);
      }
      if (space != nullptr) Copy(BuildIdentifyNamespace(Describe(*space)), data);
      return Answer();  // zeros for a namespace that is not attached
    case IdentifyCns::kActiveNamespaces: {
      if (command.nsid >= kAllNamespaces - 1) {
        return Refuse(StatusCode::kInvalidNamespaceOrFormat);
      }
      std::vector<uint32_t> ids;
      for (const Namespace& one : of->namespaces) ids.push_back(one.id);
      Copy(BuildNamespaceList(ids, command.nsid), data);
      return Answer();
    }
    case IdentifyCns::kNamespaceDescriptors:
      if (space == nullptr) return Refuse(StatusCode::kInvalidNamespaceOrFormat);
      Copy(BuildNamespaceDescriptors(Describe(*space)), data);
      return Answer();
    case IdentifyCns::kControllerOfCommandSet:
      if (identify.csi != kNvmCommandSet) return Refuse(StatusCode::kInvalidField);
      Copy(BuildIdentifyNvmController(DescribeController()), data);
      return Answer();
    default:
      return Refuse(StatusCode::kInvalidField);
  }
}

// ---------------------------------------------------------------- Get Log Page

std::vector<uint8_t> Controller::DiscoveryLog() const {
  std::vector<DiscoveryDescription> entries;
  for (const Subsystem& one : target_.subsystems()) {
    if (!one.Admits(TextIn(state_.host_nqn))) continue;
    DiscoveryDescription& entry = entries.emplace_back();
    entry.subnqn = one.nqn;
    entry.traddr = options_.address;
    entry.adrfam = options_.address.find(':') == std::string::npos ? AddressFamily::kIpv4
                                                                   : AddressFamily::kIpv6;
    entry.trsvcid = absl::StrCat(options_.port);
  }
  // FNV-1a of the page, so that the generation changes with it.
  uint64_t generation = 0xcbf29ce484222325;
  for (const uint8_t byte : BuildDiscoveryLog(0, entries)) {
    generation = (generation ^ byte) * 0x100000001b3;
  }
  return BuildDiscoveryLog(generation, entries);
}

std::vector<ErrorLogEntry> Controller::ErrorLog() const {
  std::vector<ErrorLogEntry> entries;
  for (uint64_t count = state_.errors; count > 0 && entries.size() < kErrorEntries; --count) {
    const ErrorRecord& record = state_.error_log[count % kErrorEntries];
    ErrorLogEntry& entry = entries.emplace_back();
    entry = ErrorLogEntry{};
    entry.error_count = record.count;
    entry.sqid = record.queue_id;
    entry.cid = record.command_id;
    entry.status = record.status;
    entry.parameter_error_location = 0xffff;
    entry.lba = record.lba;
    entry.nsid = record.nsid;
  }
  return entries;
}

Answer Controller::GetLogPage(const SubmissionEntry& command, const Totals& totals,
                              absl::Span<uint8_t> data) {
  const LogPageRequest request = LogPageRequestOf(command);
  const bool discovery = state_.discovery != 0;
  if (discovery != (request.page == LogPageId::kDiscovery)) {
    return Refuse(StatusCode::kInvalidLogPage);
  }
  switch (request.page) {
    case LogPageId::kDiscovery:
      return Refuse(CopyLogPage(DiscoveryLog(), request, data));
    case LogPageId::kErrorInformation:
      return Refuse(
          CopyLogPage(BytesOf(BuildErrorLog(DescribeController(), ErrorLog())), request, data));
    case LogPageId::kHealth: {
      HealthDescription health;
      health.bytes_read = totals.bytes_read;
      health.bytes_written = totals.bytes_written;
      health.host_read_commands = totals.reads;
      health.host_write_commands = totals.writes;
      health.error_log_entries = state_.errors;
      return Refuse(CopyLogPage(BytesOf(BuildHealthLog(health)), request, data));
    }
    case LogPageId::kFirmwareSlot:
      return Refuse(CopyLogPage(BytesOf(BuildFirmwareSlotLog(DescribeSubsystem())), request, data));
    case LogPageId::kCommandsSupported:
      return Refuse(
          CopyLogPage(BytesOf(BuildCommandsSupportedLog(DescribeController())), request, data));
    case LogPageId::kChangedNamespaces: {
      NamespaceList list = {};
      // The state does not say which ones, so the list says that any may have.
      if (state_.namespaces_changed != kNotChanged) list.nsid[0] = kAllNamespaces;
      const StatusCode status = CopyLogPage(BytesOf(list), request, data);
      if (status == StatusCode::kSuccess && !request.retain_async_event) {
        state_.namespaces_changed = kNotChanged;
        registry_.Touch();
      }
      return Refuse(status);
    }
    default:
      return Refuse(StatusCode::kInvalidLogPage);
  }
}

// ---------------------------------------------------------------- features

Answer Controller::GetFeatures(const SubmissionEntry& command, absl::Span<uint8_t> data) const {
  const auto features = ViewOf<FeaturesCommand>(command);
  if (SelectOf(features) != FeatureSelect::kCurrent) return Refuse(StatusCode::kInvalidField);
  switch (static_cast<FeatureId>(features.fid)) {
    case FeatureId::kArbitration:
    case FeatureId::kPowerManagement:
    case FeatureId::kTemperatureThreshold:
    case FeatureId::kErrorRecovery:
    case FeatureId::kWriteAtomicity:
      return Return(0);
    case FeatureId::kVolatileWriteCache: {
      const ControllerDescription controller = DescribeController();
      if (!controller.volatile_write_cache) return Refuse(StatusCode::kInvalidField);
      return Return(1);
    }
    case FeatureId::kNumberOfQueues: {
      const auto queues = static_cast<uint16_t>(std::max(state_.granted_queues, 1u) - 1);
      return Return(NumberOfQueues(queues, queues));
    }
    case FeatureId::kAsyncEventConfiguration:
      return Return(state_.event_configuration);
    case FeatureId::kKeepAliveTimer:
      return Return(state_.keep_alive_ms);
    case FeatureId::kHostIdentifier:
      // Fabrics have identifiers of 128 bits alone.
      if (data.size() != sizeof(state_.host_id)) return Refuse(StatusCode::kInvalidField);
      std::memcpy(data.data(), state_.host_id, sizeof(state_.host_id));
      return Answer();
    default:
      return Refuse(StatusCode::kInvalidField);
  }
}

Answer Controller::SetFeatures(const SubmissionEntry& command) {
  const auto features = ViewOf<FeaturesCommand>(command);
  if ((features.save & kFeatureSave) != 0) return Refuse(StatusCode::kFeatureIdentifierNotSaveable);
  switch (static_cast<FeatureId>(features.fid)) {
    case FeatureId::kNumberOfQueues: {
      const uint32_t submission = features.cdw11 & 0xffff, completion = features.cdw11 >> 16;
      if (submission == 0xffff || completion == 0xffff || state_.discovery != 0) {
        return Refuse(StatusCode::kInvalidField);
      }
      if (state_.queues != 0) return Refuse(StatusCode::kCommandSequenceError);
      state_.granted_queues =
          std::min({submission + 1, completion + 1, uint32_t{options_.io_queues}});
      registry_.Touch();
      const auto granted = static_cast<uint16_t>(state_.granted_queues - 1);
      return Return(NumberOfQueues(granted, granted));
    }
    case FeatureId::kAsyncEventConfiguration:
      state_.event_configuration = features.cdw11;
      registry_.Touch();
      return Answer();
    case FeatureId::kKeepAliveTimer:
      state_.keep_alive_ms = features.cdw11;
      registry_.Touch();
      return Return(state_.keep_alive_ms);
    case FeatureId::kArbitration:
    case FeatureId::kPowerManagement:
    case FeatureId::kTemperatureThreshold:
    case FeatureId::kErrorRecovery:
    case FeatureId::kVolatileWriteCache:
    case FeatureId::kWriteAtomicity:
      return Refuse(StatusCode::kFeatureNotChangeable);
    case FeatureId::kHostIdentifier:
      return Refuse(StatusCode::kCommandSequenceError);  // Connect has set it
    default:
      return Refuse(StatusCode::kInvalidField);
  }
}

// ---------------------------------------------------------------- events, Abort, Keep Alive

Answer Controller::HoldEvent(const SubmissionEntry& command, uint16_t slot) {
  if (state_.held_count >= kMaxHeldEvents) {
    return Refuse(StatusCode::kAsyncEventRequestLimitExceeded);
  }
  state_.held[state_.held_count++] = {slot, command.cid};
  registry_.Touch();
  Answer answer;
  answer.held = true;
  return answer;
}

void Controller::NoteNamespacesChanged() {
  // The host is not told again until it has read the log.
  if (state_.discovery != 0 || state_.namespaces_changed == kChangeTold) return;
  state_.namespaces_changed = kChanged;
  registry_.Touch();
}

bool Controller::HasEvent() const {
  return state_.namespaces_changed == kChanged && state_.held_count > 0 &&
         (state_.event_configuration & kAsyncEventNamespaceChanged) != 0;
}

bool Controller::TakeEvent(HeldEvent* request, uint64_t* result) {
  if (!HasEvent()) return false;
  state_.namespaces_changed = kChangeTold;
  *request = state_.held[--state_.held_count];
  *result = AsyncEventResult(AsyncEventType::kNotice, kNoticeNamespaceChanged,
                             LogPageId::kChangedNamespaces);
  registry_.Touch();
  return true;
}

// Commands are executed when they arrive, so only held requests can be aborted.
Answer Controller::Abort(const SubmissionEntry& command) {
  const auto abort = ViewOf<AbortCommand>(command);
  Answer answer = Return(kNotAborted);
  if (abort.sqid != 0) return answer;
  for (uint32_t i = 0; i < state_.held_count; ++i) {
    if (state_.held[i].command_id != abort.cid) continue;
    answer.result = 0;
    answer.answer_released = true;
    answer.release[answer.released++] = state_.held[i];
    state_.held[i] = state_.held[--state_.held_count];
    registry_.Touch();
    break;
  }
  return answer;
}

Answer Controller::KeepAlive() {
  // The target service renews the deadline when it hears from the host.
  return Answer();
}

void Controller::NoteError(uint16_t queue_id, const SubmissionEntry& command, uint16_t status) {
  ErrorRecord record;
  record.count = ++state_.errors;
  record.nsid = command.nsid;
  record.queue_id = queue_id;
  record.command_id = command.cid;
  record.status = status;
  if (queue_id != 0) record.lba = ViewOf<BlockCommand>(command).slba;
  state_.error_log[record.count % kErrorEntries] = record;
  registry_.Touch();
}

}  // namespace baton::nvmed
