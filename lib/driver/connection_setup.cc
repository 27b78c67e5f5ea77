#include "lib/driver/connection_setup.h"

#include <cstddef>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/arena/atomic_access.h"
#include "lib/arena/text_field.h"
#include "lib/base/clock.h"
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
using arena::SetText;
using verbs::CompletionStatus;

// Other threads read the state of a free slot, and nothing else of it.
void ClearAllButState(ConnectionRecord* connection) {
  constexpr size_t kBefore = offsetof(ConnectionRecord, state);
  constexpr size_t kAfter = kBefore + sizeof(connection->state);
  auto* const bytes = reinterpret_cast<uint8_t*>(connection);
  std::memset(bytes, 0, kBefore);
  std::memset(bytes + kAfter, 0, sizeof(*connection) - kAfter);
}

}  // namespace

bool ConnectionSetup::HandleEvent(uint32_t* shard) {
  *shard = DeviceObjects::kNoShard;
  verbs::CmEvent& event = state_.objects->event;
  if (!state_.objects->has_event) state_.objects->has_event = state_.device->NextEvent(&event);
  if (!state_.objects->has_event) return false;
  BATON_CRASH_POINT("driver-event-taken");
  if (event.type == verbs::CmEventType::kConnectRequest) {
    // The event has no id if a driver died that had handled it and not cleared has_event.
    if (event.new_id) {
      state_.sole ? OnConnectRequest(event, shard) : OnAssignedRequest(event, shard);
    }
  } else if (const auto context = reinterpret_cast<uintptr_t>(event.id->context)) {
    OnEvent(static_cast<uint32_t>(context - 1), event);
    *shard = state_.ShardOf(state_.record(static_cast<uint32_t>(context - 1)));
  }  // else an id that was refused before it had a slot
  BATON_CRASH_POINT("driver-event-handled");
  state_.objects->has_event = false;
  if (*shard != DeviceObjects::kNoShard) state_.shards[*shard].log.Publish();
  return true;
}

void ConnectionSetup::OnEvent(uint32_t index, const verbs::CmEvent& event) {
  switch (event.type) {
    case verbs::CmEventType::kEstablished:
      OnEstablished(index, event.private_data);
      break;
    case verbs::CmEventType::kRejected:
      teardown_.StartDraining(index, CompletionStatus::kGeneralError,
                              absl::StrCat("rejected by the peer: ", event.status.message()));
      break;
    case verbs::CmEventType::kUnreachable:
      teardown_.StartDraining(index, CompletionStatus::kRetryExceeded, MessageOf(event.status));
      break;
    default:
      if (event.status.ok()) {
        teardown_.StartDraining(index, CompletionStatus::kSuccess, "disconnected by the peer");
      } else {
        teardown_.StartDraining(index, CompletionStatus::kFatalError, MessageOf(event.status));
      }
  }
}

// The state follows the entry in the log: a successor that finds the entry stores the state.
void ConnectionSetup::OnConnectRequest(verbs::CmEvent& event, uint32_t* shard) {
  if (const absl::Status may = AdmitRequest(state_.gate, state_.connection_count, &event);
      !may.ok()) {
    return state_.observer->OnRefusedConnection(MessageOf(may));
  }
  const uint32_t target = LeastUsedShard();
  absl::StatusOr<uint32_t> index = state_.IsBroken(target) ? BrokenQueue() : TakeSlot(target);
  if (!index.ok()) {
    Refuse(&event, state_.IsBroken(target) ? "baton: the service's device is broken"
                                           : "baton: no connection slot is free");
    state_.observer->OnRefusedConnection(MessageOf(index.status()));
    return;
  }
  ConnectionRecord& connection = state_.record(*index);
  FillPrivateData(event.private_data, &connection);
  connection.listener_port = event.listener ? event.listener->address().port : 0;
  event.new_id->context = reinterpret_cast<void*>(uintptr_t{*index} + 1);
  FillAddresses(*event.new_id, &connection);
  state_.slots[*index].request_in_log = true;
  if (!state_.LogEvent(*index, CompletionKind::kConnectRequest, CompletionStatus::kSuccess)) return;
  SetState(connection, ConnectionState::kRequested);
  BATON_CRASH_POINT("driver-requested");
  state_.device_of(*index).id = std::move(event.new_id);
  BATON_CRASH_POINT("driver-id-kept");
  *shard = target;
}

// One of several drivers handles a request: `baton-driver` has assigned a slot in one of this
// driver's shards to the connection, and has filled its record.
void ConnectionSetup::OnAssignedRequest(verbs::CmEvent& event, uint32_t* shard) {
  const auto index = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(event.new_id->context) - 1);
  ConnectionRecord& connection = state_.record(index);
  *shard = state_.ShardOf(connection);
  if (connection.listener_port == 0) return OnAssignedConnect(index, event);
  if (StateOf(connection) == ConnectionState::kFree && state_.IsBroken(*shard)) {
    Refuse(&event, "baton: the service's device is broken");
    state_.observer->OnRefusedConnection(MessageOf(BrokenQueue()));
    state_.observer->OnSlotFree(index);
    return;
  }
  // Otherwise a driver that died has logged it.
  if (StateOf(connection) == ConnectionState::kFree) {
    ++state_.connection_count;
    ++arena_->shard(*shard).connections;
    state_.slots[index].request_in_log = true;
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
  const absl::Status usable = CreateQueuePair(index);
  if (!usable.ok()) {
    teardown_.StartDraining(index, CompletionStatus::kGeneralError, MessageOf(usable));
  }
}

void ConnectionSetup::OnEstablished(uint32_t index, const std::string& private_data) {
  ConnectionRecord& connection = state_.record(index);
  if (StateOf(connection) != ConnectionState::kConnecting) return;
  if (connection.listener_port == 0) FillPrivateData(private_data, &connection);
  const verbs::ReadDepths depths = state_.device_of(index).id->depths();
  connection.initiator_depth = depths.ours;
  connection.responder_resources = depths.theirs;
  connection.was_established = 1;
  state_.slots[index].established_ns = MonotonicNanoseconds();
  if (state_.sole) FillAddresses(*state_.device_of(index).id, &connection);
  if (!state_.LogEvent(index, CompletionKind::kEstablished, CompletionStatus::kSuccess)) return;
  SetState(connection, ConnectionState::kEstablished);
  BATON_CRASH_POINT("driver-established");
  state_.observer->OnConnectionState(index, "established");
  if (teardown_.EndIfFailedBefore(index)) return;
  poster_.PostAllDeferred(index);
}

absl::StatusOr<verbs::Address> ConnectionSetup::Listen(const verbs::Address& address) {
  if (state_.objects->FindListener(address) == nullptr) BATON_RETURN_IF_ERROR(CheckDeviceKept());
  return ListenOnce(state_.device, state_.objects.get(), address);
}

absl::StatusOr<uint32_t> ConnectionSetup::Connect(uint32_t shard, const verbs::Address& address,
                                                  std::string_view private_data, uint64_t tag) {
  BATON_ASSIGN_OR_RETURN(const uint32_t index, TakeSlot(shard));
  ConnectionRecord& connection = state_.record(index);
  connection.tag = tag;
  absl::Status status = CreateQueuePair(index);
  BATON_CRASH_POINT("driver-connect-queue-pair");
  if (status.ok()) {
    verbs::ConnectionParameters parameters;
    parameters.private_data = std::string(private_data);
    parameters.check_route = RouteCheckOf(state_.gate);
    auto id = state_.device->Connect(address, state_.device_of(index).queue_pair.get(), parameters);
    status = id.status();
    if (id.ok()) state_.device_of(index).id = *std::move(id);
  }
  if (!status.ok()) {
    teardown_.FreeSlot(index);
    return status;
  }
  BATON_CRASH_POINT("driver-connect-begun");
  state_.device_of(index).id->context = reinterpret_cast<void*>(uintptr_t{index} + 1);
  connection.answered = 1;
  SetText(connection.peer_address, absl::StrCat(address.host, ":", address.port));
  SetState(connection, ConnectionState::kConnecting);
  BATON_CRASH_POINT("driver-connecting");
  return index;
}

absl::Status ConnectionSetup::CheckDeviceKept() const {
  if (state_.device_lost.empty()) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("the device is given up: ", state_.device_lost));
}

// Readers see the slot as free until its new user sets its state.
absl::StatusOr<uint32_t> ConnectionSetup::TakeSlot(uint32_t shard) {
  BATON_RETURN_IF_ERROR(CheckDeviceKept());
  if (state_.free_slots.empty()) return NoSlotFree(state_.slots.size());
  const uint32_t index = state_.free_slots.front();
  state_.free_slots.pop_front();
  ConnectionRecord& fresh = state_.record(index);
  const uint32_t generation = fresh.generation + 1;
  ClearAllButState(&fresh);
  fresh.generation = generation;
  fresh.shard = shard;
  BATON_CRASH_POINT("driver-slot-taken");
  ++state_.connection_count;
  ++arena_->shard(shard).connections;
  return index;
}

uint32_t ConnectionSetup::LeastUsedShard() const {
  uint32_t best = 0;
  for (uint32_t i = 1; i < state_.shards.size(); ++i) {
    if (state_.IsBroken(i)) continue;
    const bool less = arena_->shard(i).connections < arena_->shard(best).connections;
    if (state_.IsBroken(best) || less) best = i;
  }
  return best;
}

// The connection may have a queue pair of the pool already: a driver took it and died, or
// `baton-driver` connects it. The driver must find it by its number even if its shard is broken.
absl::Status ConnectionSetup::CreateQueuePair(uint32_t index) {
  const uint32_t shard = state_.ShardOf(state_.record(index));
  const bool broken = state_.SharesReceives() && state_.IsBroken(shard);
  if (state_.sole || state_.device_of(index).queue_pair == nullptr) {
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
  if (!state_.sole) return state_.Operates(to);
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
