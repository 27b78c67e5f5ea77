#include "lib/verbs/verbs.h"

#include "absl/strings/str_cat.h"

namespace baton::verbs {

DeviceInfo Device::info() const {
  DeviceInfo info;
  info.name = std::string(name());
  return info;
}

Route ConnectionId::route() const {
  Route route;
  route.gid = local_address().host;
  return route;
}

absl::Status Device::CheckForkable() const {
  return absl::UnimplementedError(absl::StrCat(
      "device ", std::string(name()),
      ": its connections live in the process that opened it, and not in the device: forked "
      "processes cannot go on with them"));
}

absl::Status Device::AfterFork() { return CheckForkable(); }

std::string_view CompletionStatusName(CompletionStatus status) {
  switch (status) {
    case CompletionStatus::kSuccess:
      return "success";
    case CompletionStatus::kLocalLengthError:
      return "local length error";
    case CompletionStatus::kLocalQpError:
      return "local QP operation error";
    case CompletionStatus::kLocalProtectionError:
      return "local protection error";
    case CompletionStatus::kFlushError:
      return "flushed";
    case CompletionStatus::kBadResponse:
      return "bad response";
    case CompletionStatus::kRemoteInvalidRequest:
      return "remote invalid request";
    case CompletionStatus::kRemoteAccessError:
      return "remote access error";
    case CompletionStatus::kRemoteOperationError:
      return "remote operation error";
    case CompletionStatus::kRetryExceeded:
      return "transport retry counter exceeded";
    case CompletionStatus::kRnrRetryExceeded:
      return "RNR retry counter exceeded";
    case CompletionStatus::kGeneralError:
      return "general error";
    case CompletionStatus::kFatalError:
      return "fatal error of the device";
  }
  return "unknown status";
}

std::string_view DeviceEventTypeName(DeviceEventType type) {
  switch (type) {
    case DeviceEventType::kPortUp:
      return "port up";
    case DeviceEventType::kPortDown:
      return "port down";
    case DeviceEventType::kAddressesChanged:
      return "addresses changed";
    case DeviceEventType::kPathMigrated:
      return "path migrated";
    case DeviceEventType::kQueuePairFailed:
      return "queue pair failed";
    case DeviceEventType::kCompletionQueueFailed:
      return "completion queue failed";
    case DeviceEventType::kSharedReceiveQueueLow:
      return "shared receive queue low";
    case DeviceEventType::kSharedReceiveQueueFailed:
      return "shared receive queue failed";
    case DeviceEventType::kLastWorkRequestReached:
      return "last work request reached";
    case DeviceEventType::kDeviceLost:
      return "device lost";
  }
  return "unknown event";
}

std::string_view PortStateName(PortState state) {
  switch (state) {
    case PortState::kUnknown:
      return "unknown";
    case PortState::kDown:
      return "down";
    case PortState::kInitializing:
      return "initializing";
    case PortState::kArmed:
      return "armed";
    case PortState::kActive:
      return "active";
  }
  return "unknown";
}

absl::Status CheckInline(const SendRequest& request, uint32_t max_inline_data) {
  if (IsAnswered(request.opcode)) {
    return absl::InvalidArgumentError(absl::StrCat(std::string(OpcodeName(request.opcode)),
                                                   ": sends nothing that could be inline"));
  }
  uint64_t length = 0;
  for (const ScatterGather& sge : request.sges) length += sge.length;
  if (length <= max_inline_data) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "sges: ", length, " bytes inline, the queue pair takes at most ", max_inline_data));
}

std::string_view OpcodeName(Opcode opcode) {
  switch (opcode) {
    case Opcode::kSend:
      return "SEND";
    case Opcode::kSendWithImmediate:
      return "SEND_WITH_IMM";
    case Opcode::kWrite:
      return "WRITE";
    case Opcode::kWriteWithImmediate:
      return "WRITE_WITH_IMM";
    case Opcode::kRead:
      return "READ";
    case Opcode::kCompareAndSwap:
      return "COMPARE_AND_SWAP";
    case Opcode::kFetchAndAdd:
      return "FETCH_AND_ADD";
    case Opcode::kSendWithInvalidate:
      return "SEND_WITH_INV";
  }
  return "unknown opcode";
}

absl::StatusOr<std::optional<uint64_t>> QueuePair::LastQueued(bool /*receive*/) const {
  return absl::UnimplementedError("the device does not say what is queued");
}

absl::StatusOr<bool> SharedReceiveQueue::IsQueued(uint64_t /*wr_id*/) const {
  return absl::UnimplementedError("the device does not say what is queued");
}

absl::Status QueuePair::SetReset() {
  return absl::UnimplementedError("a queue pair of this device is used once");
}
absl::Status QueuePair::SetInit() { return SetReset(); }

absl::StatusOr<std::unique_ptr<SharedReceiveQueue>> Device::CreateSharedReceiveQueue(
    uint32_t /*entries*/, uint32_t /*max_scatter_gather*/) {
  return absl::UnimplementedError("the device has no shared receive queues");
}

}  // namespace baton::verbs
