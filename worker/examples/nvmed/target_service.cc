#include "worker/examples/nvmed/target_service.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "lib/base/clock.h"
#include "lib/base/crash_point.h"
#include "lib/base/status.h"
#include "spdlog/spdlog.h"
#include "worker/examples/common/end_text.h"

namespace baton::nvmed {

// ---------------------------------------------------------------- commands

void CommandProcessor::OnReceive(Queue& queue, const Completion& completion) {
  if (queue.state.phase == QueueState::kEnding) return;
  if (completion.status != verbs::CompletionStatus::kSuccess) {
    if (completion.status != verbs::CompletionStatus::kFlushError) {
      spdlog::error("queue {} of controller {}: a receive failed: {}", queue.state.id,
                    queue.state.controller,
                    std::string(verbs::CompletionStatusName(completion.status)));
    }
    return;
  }
  const uint16_t slot = Unpack(completion.tag).slot;
  if (slot >= queue.pending.size()) return transaction_.Drop(queue, "a receive of another program");
  resources_.Hear(queue);
  BATON_CRASH_POINT("nvmed-command-begin");
  Begin(queue, slot, completion.byte_len);
  BATON_CRASH_POINT("nvmed-command-end");
}

void CommandProcessor::OnSent(Queue& queue, const Completion& completion) {
  queue.AwaitSends(resources_.deadlines);
  const WorkTag tag = Unpack(completion.tag);
  if (tag.chunk && !resources_.chunks.Has(*tag.chunk, queue.connection->index())) {
    return transaction_.Drop(queue, "a work request of another program");
  }
  if (completion.status != verbs::CompletionStatus::kSuccess) {
    if (completion.status != verbs::CompletionStatus::kFlushError) {
      spdlog::error("queue {} of controller {}: a work request failed: {}", queue.state.id,
                    queue.state.controller,
                    std::string(verbs::CompletionStatusName(completion.status)));
    }
    if (tag.chunk) resources_.chunks.GiveBack(*tag.chunk);
    return;
  }
  switch (tag.purpose) {
    case Purpose::kFetch:
      if (queue.state.phase == QueueState::kEnding || tag.slot >= queue.pending.size()) {
        if (tag.chunk) resources_.chunks.GiveBack(*tag.chunk);
        return;
      }
      BATON_CRASH_POINT("nvmed-fetched-begin");
      // The capsule has only its command: fetched data do not follow it.
      Continue(queue, tag.slot, BufferPlan::kCommandBytes, tag.chunk);
      BATON_CRASH_POINT("nvmed-fetched-end");
      return;
    case Purpose::kReturn:
      if (tag.chunk) resources_.chunks.GiveBack(*tag.chunk);
      return;
    case Purpose::kLastResponse:
      return transaction_.Drop(queue, "the host has asked for it");
    default:
      return;
  }
}

void CommandProcessor::Begin(Queue& queue, uint16_t slot, uint32_t bytes) {
  if (!queue.HasRoom() && !StartsWithoutRoom(queue, slot, bytes, false)) {
    return pending_.Wait(queue, slot, bytes, std::nullopt);
  }
  const absl::StatusOr<Capsule> capsule = resources_.Parse(queue, slot, bytes);
  if (!capsule.ok()) return transaction_.Drop(queue, MessageOf(capsule.status()));
  Step step{queue, slot, bytes, *capsule, 0};
  const StatusCode status =
      capsule->status != StatusCode::kSuccess ? capsule->status : CheckData(step);
  if (status != StatusCode::kSuccess) return responder_.Finish(step, Refuse(status));
  if (DirectionOf(step.capsule.command) != DataDirection::kToController || step.length == 0) {
    return Perform(step, std::nullopt);
  }
  if (step.capsule.data.kind == DataPointer::Kind::kKeyed) return Fetch(step);
  const Namespace* space = queue.state.id != 0 ? resources_.NamespaceOf(step) : nullptr;
  if (space == nullptr || (space->backing->prompt() && !space->backing->direct())) {
    return Perform(step, std::nullopt);
  }
  // Copied to a chunk: it lies on pages, and if the connection ends during the write, no later
  // capsule arrives there.
  const std::optional<uint32_t> chunk = resources_.chunks.Take(queue.connection->index());
  if (!chunk) return pending_.Wait(queue, slot, bytes, std::nullopt);
  std::memcpy(resources_.BytesAt(resources_.plan.Chunk(*chunk), step.length).data(),
              resources_.InCapsuleData(step).data(), step.length);
  Perform(step, chunk);
}

// READs the host's data into a chunk, also for a namespace in memory, because a block must be
// written as a whole or not at all.
void CommandProcessor::Fetch(const Step& step) {
  Connection& connection = *step.queue.connection;
  const std::optional<uint32_t> chunk = resources_.chunks.Take(connection.index());
  if (!chunk) return pending_.Wait(step.queue, step.slot, step.bytes, std::nullopt);
  const Buffer buffer{resources_.plan.Chunk(*chunk), step.length};
  SendWork read;
  read.opcode = verbs::Opcode::kRead;
  read.buffers = {&buffer, 1};
  read.tag = Pack({Purpose::kFetch, step.slot, chunk});
  read.remote_address = step.capsule.data.address;
  read.rkey = step.capsule.data.key;
  const absl::Status status = transaction_.Send(step.queue, read);
  if (!status.ok()) transaction_.Drop(step.queue, MessageOf(status));
}

// Goes on when the host's data are here. The capsule still has the command, and is parsed again.
void CommandProcessor::Continue(Queue& queue, uint16_t slot, uint32_t bytes,
                                std::optional<uint32_t> chunk) {
  if (!queue.HasRoom() && !StartsWithoutRoom(queue, slot, bytes, true)) {
    return pending_.Wait(queue, slot, bytes, chunk);
  }
  const absl::StatusOr<Capsule> capsule = resources_.Parse(queue, slot, bytes);
  if (!capsule.ok()) return transaction_.Drop(queue, MessageOf(capsule.status()));
  Step step{queue, slot, bytes, *capsule, 0};
  const StatusCode status =
      capsule->status != StatusCode::kSuccess ? capsule->status : CheckData(step);
  if (status != StatusCode::kSuccess) {
    // The namespaces may have changed since the data were fetched.
    if (chunk) resources_.chunks.GiveBack(*chunk);
    return responder_.Finish(step, Refuse(status));
  }
  Perform(step, chunk);
}

// `chunk`: where the data are, unless they are in the capsule.
void CommandProcessor::Perform(const Step& step, std::optional<uint32_t> chunk) {
  absl::Span<uint8_t> data;
  if (chunk) {
    data = resources_.BytesAt(resources_.plan.Chunk(*chunk), step.length);
  } else if (step.capsule.data.kind == DataPointer::Kind::kInCapsule) {
    data = resources_.InCapsuleData(step);
  }
  const bool fabrics = step.capsule.command.opcode == static_cast<uint8_t>(AdminOpcode::kFabrics);
  const bool connected = step.queue.state.phase == QueueState::kConnected;
  if (!fabrics && connected && step.queue.state.id != 0) {
    return io_.Perform(step, chunk, data);
  }
  if (chunk) resources_.chunks.GiveBack(*chunk);  // it is free once this is committed
  if (fabrics) {
    admin_.PerformFabrics(step, data);
  } else if (!connected) {
    responder_.Finish(step, Refuse(StatusCode::kCommandSequenceError));
  } else if (ControllerState* controller = resources_.ControllerOf(step.queue)) {
    admin_.Perform(step, *controller);
  } else {
    transaction_.Drop(step.queue, "its controller is gone");
  }
}

// Checks that the data of a command are as long as the command says, and where they can be.
StatusCode CommandProcessor::CheckData(Step& step) {
  const SubmissionEntry& command = step.capsule.command;
  const bool admin = step.queue.state.id == 0;
  uint8_t block_shift = 9;
  if (!admin) {
    const Namespace* space = resources_.NamespaceOf(step);
    if (space != nullptr) block_shift = static_cast<uint8_t>(space->block_shift);
  }
  const std::optional<uint64_t> length = DataLength(command, admin, block_shift);
  if (!length) return StatusCode::kSuccess;  // the command's execution refuses it
  const StatusCode status =
      CheckDataLength(step.capsule.data, *length, resources_.LimitsOf(step.queue));
  if (status != StatusCode::kSuccess) return status;
  step.length = static_cast<uint32_t>(*length);
  if (step.length > 0 && DirectionOf(command) == DataDirection::kToHost &&
      step.capsule.data.kind != DataPointer::Kind::kKeyed) {
    return StatusCode::kSglDescriptorTypeInvalid;
  }
  return StatusCode::kSuccess;
}

// Returns whether a thread is to execute the command of a slot. If so, `*work` becomes what it
// executes.
bool CommandProcessor::IsForThreads(Queue& queue, uint16_t slot, uint32_t bytes, IoWork* work,
                                    DataPointer::Kind* data) {
  if (queue.state.id == 0 || queue.state.phase != QueueState::kConnected) return false;
  const absl::StatusOr<Capsule> capsule = resources_.Parse(queue, slot, bytes);
  if (!capsule.ok() || capsule->status != StatusCode::kSuccess) return false;
  Step step{queue, slot, bytes, *capsule, 0};
  if (CheckData(step) != StatusCode::kSuccess) return false;
  const Namespace* space = resources_.NamespaceOf(step);
  const bool has_data =
      DirectionOf(capsule->command) == DataDirection::kToController && step.length > 0;
  *data = has_data ? capsule->data.kind : DataPointer::Kind::kNone;
  return space != nullptr && !space->backing->prompt() &&
         resources_.View(*resources_.ControllerOf(queue)).enabled() &&
         MakeWork(capsule->command, *resources_.SubsystemOf(queue), work) == StatusCode::kSuccess;
}

// Returns true for a command for threads whose data are here: it needs room only when it is
// answered. A former owner may have executed it, so it must not wait for anything that later
// commands do not wait for.
bool CommandProcessor::StartsWithoutRoom(Queue& queue, uint16_t slot, uint32_t bytes,
                                         bool fetched) {
  IoWork work;
  DataPointer::Kind data;
  return IsForThreads(queue, slot, bytes, &work, &data) &&
         (fetched || data != DataPointer::Kind::kKeyed);
}

void CommandProcessor::Resume() {
  passed_writes_.clear();
  pending_.Resume([this](const PendingCommands::Waiting& waiting) { return GoOn(waiting); });
}

// Returns whether the command could go on, or is gone.
bool CommandProcessor::GoOn(const PendingCommands::Waiting& waiting) {
  Queue* queue = associations_.At(waiting.connection);
  if (queue == nullptr || queue->generation != waiting.generation ||
      queue->state.phase == QueueState::kEnding) {
    return true;
  }
  IoWork work;
  DataPointer::Kind data = DataPointer::Kind::kNone;
  const PendingCommand pending = queue->pending[waiting.slot];
  const bool fetched = pending.where >= PendingCommand::kChunk0;
  const bool for_threads = IsForThreads(*queue, waiting.slot, pending.bytes, &work, &data);
  const bool held_up =
      for_threads && std::any_of(passed_writes_.begin(), passed_writes_.end(),
                                 [&](const IoWork& other) { return IsOverlap(work, other); });
  const bool can_start =
      queue->HasRoom() || (for_threads && (fetched || data != DataPointer::Kind::kKeyed));
  if (!held_up && can_start && transaction_.MakeRoom(*queue)) {
    pending_.Clear(*queue, waiting.slot);
    pending_.BeginStep(waiting.order);
    if (fetched) {
      Continue(*queue, waiting.slot, pending.bytes, pending.where - PendingCommand::kChunk0);
    } else {
      Begin(*queue, waiting.slot, pending.bytes);
    }
    if (pending_.EndStep()) return true;
  }
  const bool has_data = queue->pending[waiting.slot].where >= PendingCommand::kChunk0 ||
                        data == DataPointer::Kind::kNone;
  if (for_threads && work.writes() && has_data) passed_writes_.push_back(work);
  return false;
}

// ---------------------------------------------------------------- ownership

absl::Status TargetService::Fit(Worker& worker) {
  BATON_ASSIGN_OR_RETURN(Resources resources, Resources::Make(config_, firmware_, worker));
  resources.fault = fault_;
  parts_.emplace(std::move(resources), worker.capacity());
  return parts_->commands.io().StartExecutor(worker, config_.io_threads());
}

absl::Status TargetService::OnAdopt(Shard& shard) {
  Resources& resources = parts_->resources;
  Registry& registry = resources.registry;
  BATON_RETURN_IF_ERROR(resources.plan.Check(resources.buffers));
  BATON_RETURN_IF_ERROR(registry.Load(shard.state(), shard.state_version()));
  Forget();
  parts_->transaction.Begin(shard);
  resources.plan.Stamp(resources.buffers);
  parts_->associations.Adopt(shard);
  resources.deadlines.Adopt(registry.controllers(), MonotonicNanoseconds());
  if (registry.namespaces_hash() != resources.target.Hash()) {
    for (ControllerState& controller : registry.controllers()) {
      if (controller.id != 0) resources.View(controller).NoteNamespacesChanged();
    }
    registry.set_namespaces_hash(resources.target.Hash());
    registry.Touch();
  }
  return absl::OkStatus();
}

void TargetService::OnRelease(Shard&) {
  Quiesce();
  Forget();
}

void TargetService::Quiesce() {
  parts_->commands.io().Drain();
  parts_->commands.io().TakeResults();
  parts_->transaction.Commit();
}

void TargetService::OnLost(Shard& shard) {
  spdlog::warn("shard {} was taken away", shard.index());
  parts_->commands.io().Drain();
  Forget();
}

void TargetService::OnShutdown(std::string_view reason) {
  spdlog::info("asked to end: {}", std::string(reason));
  stopping_ = true;
}

// Drops the state that is only in this process.
void TargetService::Forget() {
  parts_->transaction.Forget();
  parts_->associations.Forget();
  parts_->pending.Forget();
  parts_->commands.io().Forget();
  parts_->resources.chunks.Reset(parts_->resources.plan.chunks());
  parts_->resources.deadlines.Forget();
}

// ---------------------------------------------------------------- completions and turns

void TargetService::OnCompletion(Shard& shard, const Completion& completion) {
  if (&shard != parts_->transaction.shard()) return;
  Associations& associations = parts_->associations;
  Connection& connection = *completion.connection;
  if (completion.kind == Completion::Kind::kConnectRequest) {
    // The slot's former connection may have ended without a notification.
    Queue* former = associations.At(connection.index());
    if (former != nullptr && former->generation != connection.generation()) OnEnd(*former);
    // A successor may have answered the request at adoption, before it gets this completion.
    if (associations.QueueOf(connection).state.phase == 0) {
      associations.OnConnectRequest(connection);
    }
    return;
  }
  Queue& queue = associations.QueueOf(connection);
  switch (completion.kind) {
    case Completion::Kind::kReceive:
      parts_->commands.OnReceive(queue, completion);
      break;
    case Completion::Kind::kSend:
      parts_->commands.OnSent(queue, completion);
      break;
    case Completion::Kind::kDisconnected:
    case Completion::Kind::kConnectFailed:
      spdlog::info("queue {} of controller {}, connection {} of {}, ended: {}", queue.state.id,
                   queue.state.controller, connection.index(),
                   std::string(connection.peer_address()),
                   std::string(examples::EndText(completion)));
      OnEnd(queue);
      break;
    default:
      break;
  }
}

void TargetService::OnEnd(Queue& queue) {
  parts_->commands.io().OnEnd(queue.connection->index());
  parts_->associations.OnEnd(queue);
}

void TargetService::EndTurn(uint64_t now) {
  parts_->resources.deadlines.set_now(now);
  if (parts_->transaction.shard() == nullptr) return;
  parts_->commands.io().TakeResults();
  parts_->commands.responder().TellChanges();
  if (now >= parts_->resources.deadlines.next()) parts_->associations.CheckDeadlines();
  Transaction& transaction = parts_->transaction;
  transaction.EndConnections();
  transaction.TakeChunksFreed();
  do {
    parts_->commands.Resume();
    transaction.Commit();
    parts_->associations.AnswerRequests();
    // Nothing else may come to resume commands that wait for chunks.
  } while (transaction.TakeChunksFreed() && parts_->pending.any_waiting());
}

}  // namespace baton::nvmed
