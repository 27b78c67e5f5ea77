#include "lib/verbs/verbs.h"

#include <iterator>

#include "absl/strings/str_cat.h"

namespace baton::verbs {
namespace {

// Returns the name of a value, or `unknown`, because the value may come from another process.
// `names` is in the order of its enum.
template <typename Enum, size_t kCount>
std::string_view NameIn(const std::string_view (&names)[kCount], Enum value,
                        std::string_view unknown) {
  const auto index = static_cast<size_t>(value);
  return index < kCount ? names[index] : unknown;
}

}  // namespace

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

absl::Status Device::OpenersWork(const char* what) {
  return absl::UnimplementedError(
      absl::StrCat(what, ": only the process that opened the device does that"));
}

absl::Status Device::AfterFork() { return CheckForkable(); }

absl::Status Device::Describe(BatonInheritedDevice* /*described*/) const {
  return absl::UnimplementedError(
      absl::StrCat("device ", std::string(name()),
                   ": other code cannot make objects of its own for its queues"));
}
absl::StatusOr<std::unique_ptr<CompletionQueue>> Device::Inherit(
    const BatonInheritedCompletionQueue& /*described*/) {
  return Describe(nullptr);
}
absl::StatusOr<std::unique_ptr<SharedReceiveQueue>> Device::Inherit(
    const BatonInheritedSharedReceiveQueue& /*described*/) {
  return Describe(nullptr);
}
absl::StatusOr<std::unique_ptr<QueuePair>> Device::Inherit(
    const BatonInheritedQueuePair& /*described*/, CompletionQueue* /*completes*/,
    SharedReceiveQueue* /*shared*/) {
  return Describe(nullptr);
}

std::string_view CompletionStatusName(CompletionStatus status) {
  static constexpr std::string_view kNames[] = {"success",
                                                "local length error",
                                                "local QP operation error",
                                                "local protection error",
                                                "flushed",
                                                "bad response",
                                                "remote invalid request",
                                                "remote access error",
                                                "remote operation error",
                                                "transport retry counter exceeded",
                                                "RNR retry counter exceeded",
                                                "general error",
                                                "fatal error of the device"};
  static_assert(std::size(kNames) == static_cast<size_t>(CompletionStatus::kFatalError) + 1);
  return NameIn(kNames, status, "unknown status");
}

std::string_view PortStateName(PortState state) {
  static constexpr std::string_view kNames[] = {"unknown", "down", "initializing", "armed",
                                                "active"};
  static_assert(std::size(kNames) == static_cast<size_t>(PortState::kActive) + 1);
  return NameIn(kNames, state, "unknown");
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
  static constexpr std::string_view kNames[] = {
      "SEND", "SEND_WITH_IMM",    "WRITE",         "WRITE_WITH_IMM",
      "READ", "COMPARE_AND_SWAP", "FETCH_AND_ADD", "SEND_WITH_INV"};
  static_assert(std::size(kNames) == static_cast<size_t>(Opcode::kSendWithInvalidate) + 1);
  return NameIn(kNames, opcode, "unknown opcode");
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

absl::Status Device::CheckFollowable() const {
  return absl::UnimplementedError(absl::StrCat("on device ", std::string(name()),
                                               " nobody can follow the process that opened it"));
}
absl::Status Device::BeginTakeOver() { return CheckFollowable(); }
absl::Status Device::TakeOver() { return CheckFollowable(); }
absl::StatusOr<Device::AdoptedId> Device::AdoptId(FormerId /*former*/) { return CheckFollowable(); }
absl::StatusOr<std::unique_ptr<MemoryRegion>> Device::AdoptRegion(uint32_t /*rkey*/) {
  return CheckFollowable();
}
absl::Status Device::DestroyUnknownIds() { return CheckFollowable(); }

absl::StatusOr<std::unique_ptr<SharedReceiveQueue>> Device::CreateSharedReceiveQueue(
    uint32_t /*entries*/, uint32_t /*max_scatter_gather*/) {
  return absl::UnimplementedError("the device has no shared receive queues");
}

}  // namespace baton::verbs
