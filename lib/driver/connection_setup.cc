#include "lib/driver/connection_setup.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/arena/atomic_access.h"
#include "lib/base/crash_point.h"
#include "lib/base/status.h"
#include "lib/driver/connection_state.h"
#include "lib/driver/shared_receives.h"

namespace baton::driver {
namespace {

using arena::CommitEntry;
using arena::CompletionKind;
using arena::ConnectionRecord;
using arena::ConnectionState;
using verbs::CompletionStatus;

}  // namespace

bool ConnectionSetup::HandleEvent(uint32_t* shard) {
  *shard = DeviceObjects::kNoShard;
  verbs::CmEvent& event = state_.event;
  if (!state_.device->NextEvent(&event)) return false;
  BATON_CRASH_POINT("driver-event-taken");
  if (event.type == verbs::CmEventType::kConnectRequest) {
    // A successor of a driver that died while it handled the event has the id already.
    if (event.new_id) OnAssignedRequest(event, shard);
  } else if (const auto context = reinterpret_cast<uintptr_t>(event.id->context)) {
    const auto index = static_cast<uint32_t>(context - 1);
    *shard = state_.ShardOf(state_.record(index));
    state_.SetAt(*shard, arena::AtConnection(index));
    BATON_CRASH_POINT("driver-handles-event");
    OnEvent(index, event);
  }
  BATON_CRASH_POINT("driver-event-handled");
  if (*shard == DeviceObjects::kNoShard) return true;
  state_.shards[*shard].log.Publish();
  state_.SetAt(*shard, 0);
  return true;
}

void ConnectionSetup::OnEvent(uint32_t index, const verbs::CmEvent& event) {
  switch (event.type) {
    case verbs::CmEventType::kEstablished:
      OnEstablished(index);
      break;
    case verbs::CmEventType::kRejected:
      teardown_.StartDraining(index, CompletionStatus::kGeneralError,
                              absl::StrCat("rejected by the peer: ", event.status.message()));
      break;
    case verbs::CmEventType::kUnreachable:
      teardown_.StartDraining(index, CompletionStatus::kRetryExceeded, MessageOf(event.status));
      break;
    default:
      OnEnded(index, event);
  }
}

// `event.private_data`: why `baton-driver` has ended it; empty: the peer has.
void ConnectionSetup::OnEnded(uint32_t index, const verbs::CmEvent& event) {
  if (event.status.ok()) {
    teardown_.StartDraining(
        index, CompletionStatus::kSuccess,
        event.private_data.empty() ? "disconnected by the peer" : event.private_data);
  } else {
    teardown_.StartDraining(index,
                            absl::IsInternal(event.status) ? CompletionStatus::kGeneralError
                                                           : CompletionStatus::kFatalError,
                            MessageOf(event.status));
  }
}

// `baton-driver` has assigned a slot in one of this driver's shards to the connection, and has
// filled its record. The state follows the entry in the log: a successor that finds the entry
// stores the state.
void ConnectionSetup::OnAssignedRequest(verbs::CmEvent& event, uint32_t* shard) {
  const auto index = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(event.new_id->context) - 1);
  ConnectionRecord& connection = state_.record(index);
  *shard = state_.ShardOf(connection);
  state_.SetAt(*shard, arena::AtConnection(index));
  BATON_CRASH_POINT("driver-handles-request");
  if (connection.listener_port == 0) return OnAssignedConnect(index, event);
  const absl::Status usable = CheckUsable(*shard, connection);
  if (StateOf(connection) == ConnectionState::kFree && !usable.ok()) {
    Refuse(&event, "baton: the service's device is broken");
    state_.observer->OnRefusedConnection(MessageOf(usable));
    state_.observer->OnSlotFree(index);
    return;
  }
  // Otherwise a driver that died has logged it.
  if (StateOf(connection) == ConnectionState::kFree) {
    ++state_.connection_count;
    ++arena_->shard(*shard).connections;
    if (!state_.LogEvent(index, CompletionKind::kConnectRequest, CompletionStatus::kSuccess)) {
      return;
    }
    SetState(connection, ConnectionState::kRequested);
    BATON_CRASH_POINT("driver-requested");
  }
  state_.device_of(index).id = std::move(event.new_id);
  BATON_CRASH_POINT("driver-id-kept");
}

// The connection has its queue pair, and `baton-driver` is connecting it to a peer.
void ConnectionSetup::OnAssignedConnect(uint32_t index, verbs::CmEvent& event) {
  // Otherwise a driver that died has begun it, or its peer was faster than its notice.
  if (StateOf(state_.record(index)) == ConnectionState::kFree) state_.BeginConnecting(index);
  state_.device_of(index).id = std::move(event.new_id);
  const absl::Status usable = IsCondemned(state_.record(index))
                                  ? absl::InternalError(View(kCondemnedReason))
                                  : CreateQueuePair(index);
  if (!usable.ok()) {
    teardown_.StartDraining(index, CompletionStatus::kGeneralError, MessageOf(usable));
  }
}

void ConnectionSetup::OnEstablished(uint32_t index) {
  ConnectionRecord& connection = state_.record(index);
  if (StateOf(connection) != ConnectionState::kConnecting) return;
  const verbs::ReadDepths depths = state_.device_of(index).id->depths();
  connection.initiator_depth = depths.ours;
  connection.responder_resources = depths.theirs;
  connection.was_established = 1;
  if (!state_.LogEvent(index, CompletionKind::kEstablished, CompletionStatus::kSuccess)) return;
  SetState(connection, ConnectionState::kEstablished);
  BATON_CRASH_POINT("driver-established");
  state_.observer->OnConnectionState(index, "established");
  if (teardown_.EndIfFailedBefore(index)) return;
  poster_.PostAllDeferred(index);
}

absl::Status ConnectionSetup::CheckUsable(uint32_t shard,
                                          const ConnectionRecord& connection) const {
  if (IsCondemned(connection)) return absl::InternalError(View(kCondemnedReason));
  return state_.IsBroken(shard) ? BrokenQueue() : CheckDeviceKept();
}

absl::Status ConnectionSetup::CheckDeviceKept() const {
  if (state_.device_lost.empty()) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("the device is given up: ", state_.device_lost));
}

// The connection may have a queue pair of the pool already: a driver took it and died, or
// `baton-driver` connects it. The driver must find it by its number even if its shard is broken.
absl::Status ConnectionSetup::CreateQueuePair(uint32_t index) {
  const uint32_t shard = state_.ShardOf(state_.record(index));
  const bool broken = state_.SharesReceives() && state_.IsBroken(shard);
  if (state_.device_of(index).queue_pair == nullptr) {
    if (broken) return BrokenQueue();
    BATON_ASSIGN_OR_RETURN(
        state_.device_of(index).queue_pair,
        state_.device->CreateQueuePair(state_.objects->QueuePairOptionsOf(arena_->shape(), shard)));
  }
  state_.record(index).qp_number = state_.device_of(index).queue_pair->number();
  state_.by_queue_pair[state_.record(index).qp_number] = index;
  return broken ? BrokenQueue() : absl::OkStatus();
}

// Returns true if both shards have the same owner. A native driver operates only shards that it
// owns, or that it inherits from one dead owner.
bool ConnectionSetup::MayMove(uint32_t from, uint32_t to) const {
  if (arena::IsNative(arena_->shape())) return state_.Operates(to);
  return arena::OwnershipSlot(arena_->shard(from).owner.ownership) ==
         arena::OwnershipSlot(arena_->shard(to).owner.ownership);
}

void ConnectionSetup::PrepareAccept(uint32_t shard, const CommitEntry& entry) {
  ConnectionRecord& connection = state_.record(entry.connection);
  if (StateOf(connection) != ConnectionState::kRequested) return;
  if (entry.target_shard != connection.shard) {
    if (!MayMove(shard, entry.target_shard)) {
      teardown_.StartDraining(entry.connection, CompletionStatus::kGeneralError,
                              "accepted into a shard that the worker does not own");
      return;
    }
    --arena_->shard(shard).connections;
    ++arena_->shard(entry.target_shard).connections;
    ShardCounters& from = state_.shards[shard].counters;
    ShardCounters& to = state_.shards[entry.target_shard].counters;
    const uint64_t sends = connection.send.committed - connection.send.posted;
    const uint64_t receives = connection.receive.committed - connection.receive.posted;
    from.sends_committed -= sends;
    to.sends_committed += sends;
    from.receives_committed -= receives;
    to.receives_committed += receives;
    arena::StoreRelease(connection.arriving, uint8_t{1});
    arena::StoreRelease(connection.shard, entry.target_shard);
    BATON_CRASH_POINT("driver-accept-moved");
  }
  const absl::Status created = CreateQueuePair(entry.connection);
  if (!created.ok()) {
    teardown_.StartDraining(entry.connection, CompletionStatus::kGeneralError, MessageOf(created));
    return;
  }
  BATON_CRASH_POINT("driver-accept-queue-pair");
  SetState(connection, ConnectionState::kConnecting);
  BATON_CRASH_POINT("driver-accepting");
  // Receives of former transactions are due: the peer may send as soon as it is accepted.
  poster_.PostDeferred(entry.connection, /*receive=*/true);
}

// The connection has arrived once every later driver of its new shard can do without this commit.
void ConnectionSetup::FinishAccept(const CommitEntry& entry) {
  AnswerAccept(entry);
  arena::StoreRelease(state_.record(entry.connection).arriving, uint8_t{0});
  BATON_CRASH_POINT("driver-arrived");
}

void ConnectionSetup::AnswerAccept(const CommitEntry& entry) {
  ConnectionRecord& connection = state_.record(entry.connection);
  if (StateOf(connection) != ConnectionState::kConnecting || connection.answered != 0) return;
  arena::StoreRelaxed(connection.answered, uint8_t{1});
  if (!state_.device_of(entry.connection).id || !state_.device_of(entry.connection).queue_pair) {
    return teardown_.StartDraining(entry.connection, CompletionStatus::kGeneralError, kNoQueuePair);
  }
  BATON_CRASH_POINT("driver-before-accept");
  verbs::ConnectionParameters parameters;
  parameters.private_data = CopyPrivateData(entry.connection, entry.private_data_length);
  const DeviceObjects::Connection& device = state_.device_of(entry.connection);
  const absl::Status accepted = device.id->Accept(device.queue_pair.get(), parameters);
  BATON_CRASH_POINT("driver-accepted");
  if (!accepted.ok()) {
    teardown_.StartDraining(entry.connection, CompletionStatus::kGeneralError, MessageOf(accepted));
  }
}

void ConnectionSetup::Reject(const CommitEntry& entry) {
  ConnectionRecord& connection = state_.record(entry.connection);
  if (StateOf(connection) != ConnectionState::kRequested) return;
  DeviceObjects::Connection& device = state_.device_of(entry.connection);
  absl::Status rejected;
  if (device.id) {
    rejected = device.id->Reject(CopyPrivateData(entry.connection, entry.private_data_length));
  }
  BATON_CRASH_POINT("driver-rejected");
  device.id.reset();  // rejects, if Reject() has not
  teardown_.StartDraining(entry.connection, CompletionStatus::kSuccess,
                          rejected.ok()
                              ? "rejected by the worker"
                              : absl::StrCat("rejected by the worker, the peer was not told why: ",
                                             rejected.message()));
}

std::string ConnectionSetup::CopyPrivateData(uint32_t index, uint32_t length) const {
  std::string data(length, '\0');
  std::memcpy(data.data(), arena_->private_data(index), length);
  return data;
}

}  // namespace baton::driver
