#include "worker/examples/nvmed/state.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "lib/base/status.h"

namespace baton::nvmed {
namespace {

absl::Status RefuseQueueState(const char* field, uint64_t value) {
  return absl::InvalidArgumentError(absl::StrCat("the queue's state: ", field, " ", value));
}

absl::Status CheckQueueState(const QueueState& state, uint32_t max_entries) {
  if (state.phase < QueueState::kAccepted || state.phase > QueueState::kEnding) {
    return RefuseQueueState("phase", state.phase);
  }
  if (state.id > kMaxIoQueues) return RefuseQueueState("id", state.id);
  if (state.entries > max_entries) return RefuseQueueState("entries", state.entries);
  if (state.phase == QueueState::kEnding) return absl::OkStatus();  // whatever its other fields are
  if (state.entries == 0) return RefuseQueueState("entries", state.entries);
  if (state.wrap == 0 || state.wrap > state.entries) return RefuseQueueState("wrap", state.wrap);
  if ((state.controller != 0) != (state.phase == QueueState::kConnected)) {
    return RefuseQueueState("controller", state.controller);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<SavedQueue> ReadQueue(absl::Span<const uint8_t> bytes, uint32_t version,
                                     uint32_t max_entries) {
  SavedQueue saved;
  if (version != kStateVersion || bytes.size() < sizeof(saved.state)) {
    return absl::InvalidArgumentError(absl::StrCat(bytes.size(), " bytes of state of version ",
                                                   version, ": ", sizeof(saved.state),
                                                   " at least, of version ", kStateVersion));
  }
  std::memcpy(&saved.state, bytes.data(), sizeof(saved.state));
  BATON_RETURN_IF_ERROR(CheckQueueState(saved.state, max_entries));
  bytes.remove_prefix(sizeof(saved.state));
  const size_t listed = bytes.size() / sizeof(PendingCommand);
  saved.pending.resize(saved.state.entries);
  if (bytes.size() % sizeof(PendingCommand) != 0 ||
      (listed != 0 && listed != saved.pending.size())) {
    return RefuseQueueState("bytes of commands", bytes.size());
  }
  if (listed > 0) std::memcpy(saved.pending.data(), bytes.data(), bytes.size());
  return saved;
}

void WriteQueue(const QueueState& state, absl::Span<const PendingCommand> commands,
                std::vector<uint8_t>* bytes) {
  const size_t command_bytes = commands.size() * sizeof(PendingCommand);
  bytes->resize(sizeof(state) + command_bytes);
  std::memcpy(bytes->data(), &state, sizeof(state));
  if (command_bytes > 0) {
    std::memcpy(bytes->data() + sizeof(state), commands.data(), command_bytes);
  }
}

bool HoldsSlotsOf(const ControllerState& controller, absl::Span<const PendingCommand> admin) {
  if (controller.held_count > kMaxHeldEvents) return false;
  for (uint32_t i = 0; i < controller.held_count; ++i) {
    const uint16_t slot = controller.held[i].slot;
    if (slot >= admin.size() || admin[slot].where != PendingCommand::kIdle) return false;
    for (uint32_t j = 0; j < i; ++j) {
      if (controller.held[j].slot == slot) return false;
    }
  }
  return true;
}

}  // namespace baton::nvmed
