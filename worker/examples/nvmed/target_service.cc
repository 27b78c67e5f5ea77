#include "worker/examples/nvmed/target_service.h"

#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "spdlog/spdlog.h"
#include "worker/examples/common/end_text.h"

namespace baton::nvmed {

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
