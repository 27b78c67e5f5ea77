#include "worker/examples/nvmed/capsule.h"

#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace baton::nvmed {
namespace {

constexpr uint32_t kCommandBytes = sizeof(SubmissionEntry);

bool IsFabrics(const SubmissionEntry& command) {
  return command.opcode == static_cast<uint8_t>(AdminOpcode::kFabrics);
}

std::optional<uint64_t> FabricsDataLength(const SubmissionEntry& command) {
  switch (FabricsTypeOf(command)) {
    case FabricsType::kConnect:
      return sizeof(ConnectData);
    case FabricsType::kAuthenticationSend:
    case FabricsType::kAuthenticationReceive:
      return ViewOf<AuthenticationCommand>(command).length;
    case FabricsType::kPropertySet:
    case FabricsType::kPropertyGet:
    case FabricsType::kDisconnect:
      return 0;
  }
  return std::nullopt;
}

// Returns the length of features' values that do not fit in a dword.
std::optional<uint64_t> FeatureDataLength(const FeaturesCommand& command) {
  switch (static_cast<FeatureId>(command.fid)) {
    case FeatureId::kLbaRangeType:
      return 4096;
    case FeatureId::kPowerStateTransition:
      return 256;
    case FeatureId::kTimestamp:
      return 8;
    case FeatureId::kHostBehavior:
      return 512;
    case FeatureId::kHostIdentifier:
      return (command.cdw11 & 1) != 0 ? 16 : 8;
    case FeatureId::kArbitration:
    case FeatureId::kPowerManagement:
    case FeatureId::kTemperatureThreshold:
    case FeatureId::kErrorRecovery:
    case FeatureId::kVolatileWriteCache:
    case FeatureId::kNumberOfQueues:
    case FeatureId::kInterruptCoalescing:
    case FeatureId::kInterruptVector:
    case FeatureId::kWriteAtomicity:
    case FeatureId::kAsyncEventConfiguration:
    case FeatureId::kKeepAliveTimer:
    case FeatureId::kReservationNotificationMask:
    case FeatureId::kReservationPersistence:
    case FeatureId::kWriteProtection:
      return 0;
  }
  return std::nullopt;
}

std::optional<uint64_t> GetFeaturesDataLength(const FeaturesCommand& command) {
  const std::optional<uint64_t> length = FeatureDataLength(command);
  // The completion's result has the feature's capabilities, so no data are returned.
  return length && SelectOf(command) == FeatureSelect::kSupported ? 0 : length;
}

std::optional<uint64_t> AdminDataLength(const SubmissionEntry& command) {
  switch (static_cast<AdminOpcode>(command.opcode)) {
    case AdminOpcode::kGetLogPage: {
      const auto get = ViewOf<GetLogPageCommand>(command);
      return ((uint64_t{get.numdu} << 16 | get.numdl) + 1) * 4;
    }
    case AdminOpcode::kIdentify:
      return 4096;
    case AdminOpcode::kSetFeatures:
      return FeatureDataLength(ViewOf<FeaturesCommand>(command));
    case AdminOpcode::kGetFeatures:
      return GetFeaturesDataLength(ViewOf<FeaturesCommand>(command));
    case AdminOpcode::kAbort:
    case AdminOpcode::kAsyncEventRequest:
    case AdminOpcode::kKeepAlive:
      return 0;
    default:
      return std::nullopt;
  }
}

std::optional<uint64_t> IoDataLength(const SubmissionEntry& command, uint8_t block_shift) {
  switch (static_cast<IoOpcode>(command.opcode)) {
    case IoOpcode::kWrite:
    case IoOpcode::kRead:
    case IoOpcode::kCompare:
      return (uint64_t{ViewOf<BlockCommand>(command).nlb} + 1) << block_shift;
    case IoOpcode::kDatasetManagement:
      return (uint64_t{ViewOf<DatasetManagementCommand>(command).nr} + 1) * sizeof(DatasetRange);
    case IoOpcode::kFlush:
    case IoOpcode::kWriteUncorrectable:
    case IoOpcode::kWriteZeroes:
      return 0;
    default:
      return std::nullopt;
  }
}

// Checks byte 1, which is reserved and ignored in fabrics commands.
StatusCode CheckFlags(const SubmissionEntry& command) {
  if (IsFabrics(command)) return StatusCode::kSuccess;
  if ((command.flags & kFuseMask) != 0) return StatusCode::kInvalidField;
  const Psdt psdt = PsdtOf(command);
  // No metadata are transferred here, so it does not matter where they would be.
  if (psdt != Psdt::kSglContiguousMetadata && psdt != Psdt::kSglMetadataSegment) {
    return StatusCode::kInvalidField;
  }
  return StatusCode::kSuccess;
}

// `received`: bytes after the command.
StatusCode PointIntoCapsule(const SglDescriptor& sgl, DataDirection direction, size_t received,
                            const CapsuleLimits& limits, DataPointer* data) {
  // The type is not supported on this queue, whatever offset and length are.
  if (limits.in_capsule_bytes == 0) return StatusCode::kSglDescriptorTypeInvalid;
  if (direction != DataDirection::kToController) return StatusCode::kInvalidField;
  if (sgl.address > limits.in_capsule_bytes) return StatusCode::kSglOffsetInvalid;
  const auto offset = static_cast<uint32_t>(sgl.address);
  if (sgl.length > limits.in_capsule_bytes - offset || offset > received ||
      sgl.length > received - offset) {
    return StatusCode::kDataSglLengthInvalid;
  }
  if (sgl.length > limits.max_transfer_bytes) return StatusCode::kInvalidField;
  if (sgl.length == 0) return StatusCode::kSuccess;
  data->kind = DataPointer::Kind::kInCapsule;
  data->offset = kCommandBytes + offset;
  data->length = sgl.length;
  return StatusCode::kSuccess;
}

StatusCode PointToHost(const SglDescriptor& sgl, const CapsuleLimits& limits, DataPointer* data) {
  const SglSubtype subtype = SubtypeOf(sgl);
  if (subtype != SglSubtype::kAddress && subtype != SglSubtype::kInvalidateKey) {
    return StatusCode::kSglDescriptorTypeInvalid;
  }
  const uint32_t length = KeyedLengthOf(sgl);
  if (length > limits.max_transfer_bytes) return StatusCode::kInvalidField;
  if (length == 0) return StatusCode::kSuccess;
  data->kind = DataPointer::Kind::kKeyed;
  data->invalidate_key = subtype == SglSubtype::kInvalidateKey;
  data->length = length;
  data->key = KeyOf(sgl);
  data->address = sgl.address;
  return StatusCode::kSuccess;
}

// Refuses lists of descriptors: a command may have one data block only (MSDBD).
StatusCode RefuseSegment(const SglDescriptor& sgl) {
  if (sgl.length == 0 || sgl.length % sizeof(SglDescriptor) != 0) {
    return StatusCode::kInvalidSglSegmentDescriptor;
  }
  return sgl.length > sizeof(SglDescriptor) ? StatusCode::kInvalidNumberOfSglDescriptors
                                            : StatusCode::kSglDescriptorTypeInvalid;
}

StatusCode ParseDataPointer(const SubmissionEntry& command, size_t received,
                            const CapsuleLimits& limits, DataPointer* data) {
  const SglDescriptor& sgl = command.sgl1;
  switch (TypeOf(sgl)) {
    case SglType::kDataBlock:
      if (SubtypeOf(sgl) != SglSubtype::kOffset) return StatusCode::kSglDescriptorTypeInvalid;
      return PointIntoCapsule(sgl, DirectionOf(command), received, limits, data);
    case SglType::kKeyedDataBlock:
      return PointToHost(sgl, limits, data);
    case SglType::kSegment:
    case SglType::kLastSegment:
      return RefuseSegment(sgl);
    default:
      return StatusCode::kSglDescriptorTypeInvalid;
  }
}

}  // namespace

absl::StatusOr<Capsule> ParseCapsule(absl::Span<const uint8_t> bytes, const CapsuleLimits& limits) {
  if (bytes.size() < kCommandBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a capsule of ", bytes.size(), " bytes: its command has ", kCommandBytes));
  }
  Capsule capsule;
  std::memcpy(&capsule.command, bytes.data(), kCommandBytes);
  capsule.status = CheckFlags(capsule.command);
  if (capsule.status != StatusCode::kSuccess) return capsule;
  // A block_shift of 0 will do: the blocks' length does not decide whether there are data.
  if (DataLength(capsule.command, limits.admin_queue, 0).value_or(0) == 0) return capsule;
  capsule.status =
      ParseDataPointer(capsule.command, bytes.size() - kCommandBytes, limits, &capsule.data);
  return capsule;
}

DataDirection DirectionOf(const SubmissionEntry& command) {
  const uint8_t opcode =
      IsFabrics(command) ? static_cast<uint8_t>(FabricsTypeOf(command)) : command.opcode;
  return static_cast<DataDirection>(opcode & 0x3);
}

std::optional<uint64_t> DataLength(const SubmissionEntry& command, bool admin_queue,
                                   uint8_t block_shift) {
  if (IsFabrics(command)) return FabricsDataLength(command);
  return admin_queue ? AdminDataLength(command) : IoDataLength(command, block_shift);
}

StatusCode CheckDataLength(const DataPointer& data, uint64_t length, const CapsuleLimits& limits) {
  if (length > limits.max_transfer_bytes) return StatusCode::kInvalidField;
  return length > data.length ? StatusCode::kDataSglLengthInvalid : StatusCode::kSuccess;
}

std::optional<std::string_view> TextOf(absl::Span<const char> field, size_t max_bytes) {
  if (field.empty()) return std::nullopt;
  const void* end = std::memchr(field.data(), '\0', field.size());
  if (end == nullptr) return std::nullopt;
  const std::string_view text(field.data(),
                              static_cast<size_t>(static_cast<const char*>(end) - field.data()));
  if (text.size() > max_bytes) return std::nullopt;
  return text;
}

}  // namespace baton::nvmed
