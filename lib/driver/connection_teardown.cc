#include "lib/driver/connection_teardown.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "lib/arena/atomic_access.h"
#include "lib/base/clock.h"
#include "lib/base/crash_point.h"
#include "lib/base/status.h"
#include "lib/driver/connection_state.h"

namespace baton::driver {
namespace {

using arena::CompletionKind;
using arena::ConnectionRecord;
using arena::ConnectionState;
using verbs::CompletionStatus;

// The time in which a device finishes the packet that it was processing when the queue pair went to
// the error state. That work was seen interrupted for milliseconds (rdma.md, "Reset").
constexpr uint64_t kAtWorkNs = 1'000'000'000;

}  // namespace

// Devices give completions and connection events separately, so the error may be polled before
// events that happened before it. A connection that is being established therefore waits for its
// event: ConnectionSetup ends it when it is established, and any other event says why it ends.
void ConnectionTeardown::EndAfterError(uint32_t index, CompletionStatus status) {
  ConnectionRecord& connection = state_.record(index);
  if (StateOf(connection) != ConnectionState::kConnecting) {
    return StartDraining(index, status, verbs::CompletionStatusName(status));
  }
  const bool first = CompletionStatus(connection.last_status) == CompletionStatus::kSuccess;
  if (first) connection.last_status = static_cast<uint32_t>(status);
}

bool ConnectionTeardown::EndIfFailedBefore(uint32_t index) {
  const auto status = CompletionStatus(state_.record(index).last_status);
  if (status == CompletionStatus::kSuccess) return false;
  StartDraining(index, status, verbs::CompletionStatusName(status));
  return true;
}

// Returns true if the connection was begun by a completion, before the notice that brings its id
// and its queue pair (DriverState::BeginUnnoticed).
bool ConnectionTeardown::AwaitsNotice(uint32_t index) const {
  return state_.slots[index].unnoticed && state_.device_of(index).id == nullptr;
}

void ConnectionTeardown::StartDraining(uint32_t index, CompletionStatus status,
                                       std::string_view reason) {
  ConnectionRecord& connection = state_.record(index);
  if (!IsLive(connection)) return;
  if (AwaitsNotice(index)) {
    const bool wanted = status == CompletionStatus::kSuccess;
    connection.last_status =
        static_cast<uint32_t>(wanted ? CompletionStatus::kGeneralError : status);
    return;
  }
  connection.last_status = static_cast<uint32_t>(status);
  state_.slots[index].end_reason = std::string(reason);
  BATON_CRASH_POINT("driver-before-draining");
  SetState(connection, ConnectionState::kDraining);
  BATON_CRASH_POINT("driver-draining");
  // Requests that are not posted by now never will be.
  ShardCounters& counters = state_.shards[state_.ShardOf(connection)].counters;
  counters.sends_committed -= connection.send.committed - connection.send.posted;
  counters.receives_committed -= connection.receive.committed - connection.receive.posted;
  EndConnection(index);
}

void ConnectionTeardown::EndConnection(uint32_t index) {
  const ConnectionRecord& connection = state_.record(index);
  const DeviceObjects::Connection& device = state_.device_of(index);
  if (device.id) {
    const bool unanswered = connection.listener_port != 0 && connection.answered == 0;
    // An error is ignored: the queue pair goes to the error state whether the peer was told or not.
    (void)(unanswered ? device.id->Reject("") : device.id->Disconnect());
  }
  BATON_CRASH_POINT("driver-peer-told");
  // Sets the state even if it is the error state already: another process may have set it, and what
  // this driver has posted since would stay in the queues.
  if (device.queue_pair) {
    const absl::Status stopped = device.queue_pair->SetError();
    if (!stopped.ok()) return OnNotStopped(index, stopped);
  }
  state_.slots[index].stop_refused = false;
  if (IsCondemned(connection)) return Abandon(index, kCondemnedReason);
  ResolveRequests(index, true);
  ResolveRequests(index, false);
  FinishDraining(index);
}

// The device refuses the error state, so it may still execute what is outstanding. The queue pair
// is destroyed. A forked driver cannot do that: the end waits for completions, and
// FinishAbandoned() tries again. A lost device executes nothing any more.
void ConnectionTeardown::OnNotStopped(uint32_t index, const absl::Status& why) {
  if (!state_.objects->has_forked_drivers) return Abandon(index, MessageOf(why));
  ConnectionSlot& slot = state_.slots[index];
  if (!state_.device_lost.empty()) {
    slot.stop_refused = true;
    return Abandon(index, MessageOf(why));
  }
  if (!std::exchange(slot.stop_refused, true)) {
    slot.end_reason += absl::StrCat("; ", why.message());
    state_.observer->OnConnectionState(
        index, absl::StrCat("is ending, and its queue pair cannot be put in the error state, which "
                            "is tried again every second: ",
                            why.message()));
  }
  slot.abandoned_ns = MonotonicNanoseconds();
  state_.abandoned.push_back(index);
  ++state_.ends_noted;
  FinishDraining(index);
}

void ConnectionTeardown::FinishDraining(uint32_t index) {
  ConnectionRecord& connection = state_.record(index);
  if (StateOf(connection) != ConnectionState::kDraining || !Drained(index)) return;
  if (state_.SharesReceives() && state_.device_of(index).queue_pair) {
    // Receives that the queue pair took are in the completion queue by now, but not all in the log.
    if (std::exchange(state_.slots[index].ending, true)) return;
    state_.ending.push_back(index);
    ++state_.ends_noted;
    return;
  }
  ambiguous_.FreeSpares(index, true, ~0u);
  const bool was_established = connection.was_established != 0;
  if (!state_.LogEvent(
          index, was_established ? CompletionKind::kDisconnected : CompletionKind::kConnectFailed,
          CompletionStatus(connection.last_status))) {
    return;
  }
  SetState(connection, ConnectionState::kClosed);
  BATON_CRASH_POINT("driver-closed");
  state_.observer->OnConnectionState(index,
                                     absl::StrCat(was_established ? "ended: " : "not established: ",
                                                  state_.slots[index].end_reason));
}

// Destroys the queue pairs before it logs the ends, because the application may use the buffers
// then.
void ConnectionTeardown::FinishEnding(uint32_t shard) {
  size_t kept = 0;
  const size_t count = state_.ending.size();
  for (size_t i = 0; i < count; ++i) {
    const uint32_t index = state_.ending[i];
    if (state_.record(index).shard != shard) {
      state_.ending[kept++] = index;
      continue;
    }
    state_.slots[index].ending = false;
    if (StateOf(state_.record(index)) != ConnectionState::kDraining || !Drained(index)) continue;
    state_.SetAt(shard, arena::AtConnection(index));
    DropObjects(index);
    FinishDraining(index);
  }
  state_.ending.resize(kept);
  state_.SetAt(shard, 0);
}

bool ConnectionTeardown::Drained(uint32_t index) const {
  const ConnectionRecord& connection = state_.record(index);
  const verbs::QueuePair* const queue_pair = state_.device_of(index).queue_pair.get();
  if (state_.SharesReceives() && queue_pair != nullptr && !queue_pair->holds_no_receive()) {
    return false;
  }
  return connection.send.posted == connection.send.completed &&
         (state_.SharesReceives() || connection.receive.posted == connection.receive.completed) &&
         MaybePosted(connection, false) == 0 && MaybePosted(connection, true) == 0 &&
         Outstanding(connection.send_markers) == 0 &&
         Outstanding(connection.receive_markers) == 0 && ambiguous_.LastSpare(index) == nullptr;
}

void ConnectionTeardown::ResolveRequests(uint32_t index, bool receive) {
  const absl::Status resolved = ambiguous_.Resolve(index, receive);
  if (!resolved.ok()) FailUnknown(index, MessageOf(resolved));
}

// Gives up this connection, and no other (P6).
void ConnectionTeardown::FailUnknown(uint32_t index, std::string_view why) {
  if (IsLive(state_.record(index))) {
    ++state_.recovery.connections_failed;
    StartDraining(index, CompletionStatus::kGeneralError,
                  absl::StrCat("what became of its requests cannot be established: ", View(why)));
  } else if (state_.record(index).abandoned == 0) {
    Abandon(index, why);
  }
}

// The device touches no buffer of the queue pair any more, because it is destroyed. Its earlier
// completions are in the completion queue. That of a native service stays in the error state
// instead. One that is not in that state is not abandoned, because the device could execute its
// requests after the end.
void ConnectionTeardown::Abandon(uint32_t index, std::string_view why) {
  ConnectionSlot& slot = state_.slots[index];
  if (slot.stop_refused && state_.device_lost.empty()) return;
  slot.device_gone = slot.stop_refused;
  ConnectionRecord& connection = state_.record(index);
  arena::StoreRelaxed(connection.abandoned, std::max(connection.abandoned, uint8_t{1}));
  BATON_CRASH_POINT("driver-abandoned");
  DropObjects(index);
  slot.end_reason += absl::StrCat("; abandoned: ", View(why));
  slot.abandoned_ns = MonotonicNanoseconds();
  state_.abandoned.push_back(index);
  ++state_.ends_noted;
}

// A connection that has not begun yet is refused when its notice is handled.
void ConnectionTeardown::Condemn(uint32_t index) {
  ConnectionRecord& connection = state_.record(index);
  if (StateOf(connection) == ConnectionState::kClosed) return;
  if (!IsCondemned(connection)) ++state_.recovery.connections_failed;
  arena::StoreRelaxed(connection.abandoned, arena::kCondemned);
  BATON_CRASH_POINT("driver-condemned");
  StartDraining(index, CompletionStatus::kGeneralError, kCondemnedReason);
}

// If an abandoned connection has ended by itself, its slot may have another connection by now.
void ConnectionTeardown::FinishAbandoned(uint32_t shard) {
  const std::vector<uint32_t> all = std::exchange(state_.abandoned, {});
  for (const uint32_t index : all) {
    const ConnectionRecord& connection = state_.record(index);
    const bool stop_refused = state_.slots[index].stop_refused;
    if (StateOf(connection) != ConnectionState::kDraining) continue;
    if (connection.abandoned == 0 && !stop_refused) continue;
    const bool quiet = !state_.objects->has_forked_drivers || state_.slots[index].device_gone ||
                       MonotonicNanoseconds() - state_.slots[index].abandoned_ns >= kAtWorkNs;
    if (connection.shard != shard || !quiet) {
      state_.abandoned.push_back(index);
      continue;
    }
    state_.SetAt(shard, arena::AtConnection(index));
    if (stop_refused && !state_.slots[index].device_gone) {
      EndConnection(index);
      continue;
    }
    ambiguous_.SettleAbandoned(index);
    FinishDraining(index);
  }
  if (!all.empty()) state_.SetAt(shard, 0);
}

void ConnectionTeardown::EndAll(std::string_view why) {
  state_.device_lost = std::string(why);
  for (uint32_t index = 0; index < state_.slots.size(); ++index) {
    const ConnectionRecord& connection = state_.record(index);
    if (!IsLive(connection) || !state_.Operates(state_.ShardOf(connection))) continue;
    StartDraining(index, CompletionStatus::kFatalError, why);
  }
  for (ShardQueue& shard : state_.shards) {
    if (shard.operated) shard.log.Publish();
  }
}

bool ConnectionTeardown::AllEnded() const {
  for (uint32_t index = 0; index < state_.slots.size(); ++index) {
    const ConnectionRecord& connection = state_.record(index);
    if (!state_.Operates(state_.ShardOf(connection))) continue;
    if (IsLive(connection) || StateOf(connection) == ConnectionState::kDraining) return false;
  }
  return true;
}

void ConnectionTeardown::Leave(uint32_t shard) {
  state_.shards[shard].operated = false;
  for (uint32_t i = 0; i < state_.slots.size(); ++i) {
    const ConnectionRecord& connection = state_.record(i);
    if (StateOf(connection) != ConnectionState::kFree && connection.shard == shard) ForgetSlot(i);
  }
}

void ConnectionTeardown::AbandonAll(uint32_t shard, std::string_view why) {
  for (uint32_t index = 0; index < state_.slots.size(); ++index) {
    const ConnectionRecord& connection = state_.record(index);
    if (connection.shard != shard) continue;
    StartDraining(index, CompletionStatus::kGeneralError, why);
    if (StateOf(connection) != ConnectionState::kDraining || connection.abandoned != 0) continue;
    Abandon(index, why);
  }
}

void ConnectionTeardown::AcknowledgeEnd(uint32_t index) {
  const ConnectionState state = StateOf(state_.record(index));
  if (state == ConnectionState::kClosed) return FreeSlot(index);
  // A dead driver freed the slot and did not finish the acknowledgement.
  if (state == ConnectionState::kFree) return;
  constexpr std::string_view kWhy =
      "its end was acknowledged, and its record says that it has not ended: another process of the "
      "service has written over it";
  state_.observer->OnConnectionState(index, kWhy);
  StartDraining(index, CompletionStatus::kGeneralError, kWhy);
}

void ConnectionTeardown::FreeSlot(uint32_t index) {
  ConnectionRecord& connection = state_.record(index);
  DropObjects(index);
  ForgetQueuePair(index);
  state_.slots[index] = ConnectionSlot{};
  SetState(connection, ConnectionState::kFree);
  BATON_CRASH_POINT("driver-slot-freed");
  --arena_->shard(state_.ShardOf(connection)).connections;
  --state_.connection_count;
  state_.observer->OnSlotFree(index);
}

void ConnectionTeardown::DropObjects(uint32_t index) {
  DeviceObjects::Connection& device = state_.device_of(index);
  device.id.reset();
  BATON_CRASH_POINT("driver-id-freed");
  device.queue_pair.reset();
  BATON_CRASH_POINT("driver-queue-pair-freed");
}

void ConnectionTeardown::ForgetSlot(uint32_t index) {
  --state_.connection_count;
  std::erase(state_.abandoned, index);
  std::erase(state_.ending, index);
  ForgetQueuePair(index);
  state_.slots[index] = ConnectionSlot{};
}

void ConnectionTeardown::ForgetQueuePair(uint32_t index) {
  const auto known = state_.by_queue_pair.find(state_.record(index).qp_number);
  const bool its = known != state_.by_queue_pair.end() && known->second == index;
  if (its) state_.by_queue_pair.erase(known);
}

}  // namespace baton::driver
