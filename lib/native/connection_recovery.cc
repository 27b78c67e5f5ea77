// How a process goes on with the connections of a `baton-driver` that died. The table says what was
// done; everything else that a ConnectionManager has follows from the table, the arena and the
// device.
#include <algorithm>
#include <utility>

#include "lib/arena/atomic_access.h"
#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "lib/driver/connection_state.h"
#include "lib/native/connection_manager.h"

namespace baton::native {

using arena::NoticeKind;
using arena::PooledState;
using verbs::CompletionStatus;

namespace {

verbs::Device::IdStage StageOf(Phase phase) {
  using Stage = verbs::Device::IdStage;
  switch (phase) {
    case Phase::kRequested:
      return Stage::kRequested;
    case Phase::kAccepting:
      return Stage::kAccepting;
    case Phase::kConnecting:
      return Stage::kConnecting;
    case Phase::kAccepted:
      return Stage::kOpen;
    case Phase::kNone:
    case Phase::kEnded:
    case Phase::kUnfreed:
      break;
  }
  return Stage::kEnded;
}

}  // namespace

absl::Status ConnectionManager::TakeOver() {
  ForgetFormer();
  for (uint32_t i = 0; i < connections_.size(); ++i) BATON_RETURN_IF_ERROR(TakeOverSlot(i));
  BATON_RETURN_IF_ERROR(device_->DestroyUnknownIds());
  for (uint32_t shard = 0; shard < used_.size(); ++shard) TakeOverPool(shard);
  return absl::OkStatus();
}

// This process's own lists are older than the table.
void ConnectionManager::ForgetFormer() {
  for (auto& id : ids_) id.reset();
  for (auto& of_shard : occupied_) std::fill(of_shard.begin(), of_shard.end(), 0);
  std::fill(used_.begin(), used_.end(), 0);
  std::fill(resting_.begin(), resting_.end(), 0);
  // The limit may have been reached, and the event have been handled.
  std::fill(low_ns_.begin(), low_ns_.end(),
            arena::HasSharedReceives(arena_->shape()) ? MonotonicNanoseconds() : 0);
  for (auto& of_shard : waiting_) of_shard.clear();
  free_.clear();
  unfreed_.clear();
  spent_.clear();
  pending_ = freed_ = true;
}

absl::Status ConnectionManager::TakeOverSlot(uint32_t index) {
  Connection& connection = connections_[index];
  if (connection.phase() == Phase::kNone) {
    free_.push_back(index);
    return absl::OkStatus();
  }
  if (connection.phase() == Phase::kUnfreed) {
    unfreed_.push_back({index, connection.first_shard, connection.acknowledged});
    return absl::OkStatus();
  }
  BATON_RETURN_IF_ERROR(AdoptId(index));
  ++used_[connection.shard];
  if (connection.pooled >= 0) {
    occupied_[connection.pooled_shard][static_cast<size_t>(connection.pooled)] = index + 1;
  }
  TellOwed(index);
  return absl::OkStatus();
}

// An order that the dead process had not carried out is still in its ring.
absl::Status ConnectionManager::AdoptId(uint32_t index) {
  Connection& connection = connections_[index];
  const Phase phase = connection.phase();
  auto adopted =
      device_->AdoptId({.number = connection.id,
                        .stage = StageOf(phase),
                        .queue_pair = connection.pooled < 0 ? nullptr : QueuePairOf(connection),
                        .check_route = driver::RouteCheckOf(gate_)});
  if (absl::IsNotFound(adopted.status())) {
    // The dead process has destroyed it, and was about to store that the connection has ended.
    if (phase == Phase::kEnded) return absl::OkStatus();
    Owe(index, NoticeKind::kEnded, CompletionStatus::kGeneralError);
    connection.SetPhase(Phase::kEnded);
    return absl::OkStatus();
  }
  BATON_RETURN_IF_ERROR(adopted.status());
  ids_[index] = std::move(adopted->id);
  ids_[index]->context = reinterpret_cast<void*>(uintptr_t{index} + 1);
  if (phase == Phase::kAccepting && !adopted->unaccepted) connection.SetPhase(Phase::kAccepted);
  if (phase == Phase::kAccepting && adopted->unaccepted) connection.SetPhase(Phase::kRequested);
  if (connection.phase() == Phase::kRequested) connection.pooled = -1;
  return absl::OkStatus();
}

// The dead process may have put them, and the driver has read them then. It reads them again.
void ConnectionManager::TellOwed(uint32_t index) {
  Connection& connection = connections_[index];
  const uint8_t owed = connection.owed;
  const auto tell = [&](NoticeKind kind, CompletionStatus status) {
    if ((owed >> static_cast<uint8_t>(kind) & 1) != 0) Tell(index, kind, status);
  };
  tell(NoticeKind::kRequested, CompletionStatus::kSuccess);
  tell(NoticeKind::kConnecting, CompletionStatus::kSuccess);
  tell(NoticeKind::kEstablished, CompletionStatus::kSuccess);
  tell(NoticeKind::kRejected, CompletionStatus::kSuccess);
  tell(NoticeKind::kQueuePairFailed, CompletionStatus::kGeneralError);
  tell(NoticeKind::kEnded, connection.end);
  tell(NoticeKind::kHoldsNoReceive, CompletionStatus::kSuccess);
}

// The dead process may have begun to connect a queue pair that was lent for a connection of which
// nothing else is known. No driver has used it.
void ConnectionManager::TakeOverPool(uint32_t shard) {
  for (uint32_t place = 0; place < pool_.places(shard); ++place) {
    if (occupied_[shard][place] != 0) continue;
    const auto state = PooledState(arena::LoadAcquire(arena_->pooled(shard, place).state));
    if (state == PooledState::kLent) {
      occupied_[shard][place] = kOutOfUse;
      Spend(shard, place, /*rests=*/device_->has_time_wait());
    } else if (state == PooledState::kSpent) {
      occupied_[shard][place] = kOutOfUse;
      spent_.push_back({shard, place, RestedNs(shard, place)});
      ++resting_[shard];
    }
  }
  std::sort(spent_.begin(), spent_.end(),
            [](const Spent& a, const Spent& b) { return a.not_before_ns < b.not_before_ns; });
}

}  // namespace baton::native
