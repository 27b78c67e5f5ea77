#include "worker/coroutine.h"

#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/status.h"
#include "worker/heap.h"
#include "worker/heap_grants.h"

namespace baton {
namespace {

using Kind = Completion::Kind;

constexpr size_t kFrameAlignment = __STDCPP_DEFAULT_NEW_ALIGNMENT__;

bool Succeeded(const Completion& completion) {
  return completion.status == verbs::CompletionStatus::kSuccess;
}

bool Ends(const Completion& completion) {
  return completion.kind == Kind::kDisconnected || completion.kind == Kind::kConnectFailed;
}

// The batch may have staged so much that there is no room for it.
void Disconnect(Shard& shard, Connection& connection) {
  const bool full = absl::IsResourceExhausted(shard.Disconnect(connection));
  if (!full || shard.commit_mode() != CommitMode::kAfterEachBatch) return;
  shard.Commit().IgnoreError();
  shard.Disconnect(connection).IgnoreError();
}

}  // namespace

// ---------------------------------------------------------------- CoConnection

void* CoConnection::TakeFrame(size_t bytes) noexcept {
  const bool taken = frame_bytes_ != 0;  // by this connection's coroutine, which called another
  if (!taken) frame_bytes_ = bytes;
  return taken || bytes > frame_room_ ? nullptr : frame_;
}

void CoConnection::NoteException() noexcept {
  try {
    throw;
  } catch (const std::exception& exception) {
    failure_ = absl::InternalError(absl::StrCat("the coroutine has thrown: ", exception.what()));
  } catch (...) {
    failure_ = absl::InternalError("the coroutine has thrown an exception of unknown kind");
  }
}

bool CoConnection::Awaits(const Completion& completion) const {
  switch (awaited_) {
    case Awaited::kNothing:
      return false;
    case Awaited::kMessage:
      return completion.kind == Kind::kReceive && Succeeded(completion);
    case Awaited::kSend:
      return completion.kind == Kind::kSend && Succeeded(completion) &&
             completion.tag == awaited_tag_;
    case Awaited::kEnd:
      return Ends(completion);
    case Awaited::kAny:
      return true;
  }
  return false;
}

void CoConnection::Resume(const Completion& completion) {
  completion_ = completion;
  awaited_ = Awaited::kNothing;
  coroutine_.resume();
}

void CoConnection::Destroy() {
  if (coroutine_) std::exchange(coroutine_, nullptr).destroy();
  awaited_ = Awaited::kNothing;
}

// ---------------------------------------------------------------- CoroutineService

CoroutineService::CoroutineService(const CoroutineOptions& options)
    : count_(options.coroutines),
      frame_bytes_((size_t{options.frame_bytes} + kFrameAlignment - 1) / kFrameAlignment *
                   kFrameAlignment),
      frames_(new std::byte[count_ * frame_bytes_]),
      connections_(new CoConnection[count_]) {
  free_.reserve(count_);
  for (size_t i = count_; i-- > 0;) {
    connections_[i].frame_ = frames_.get() + i * frame_bytes_;
    connections_[i].frame_room_ = frame_bytes_;
    free_.push_back(&connections_[i]);
  }
}

CoroutineService::~CoroutineService() {
  for (size_t i = 0; i < count_; ++i) connections_[i].Destroy();
}

// Coroutines of the shard are left if an earlier Worker lost its driver.
absl::Status CoroutineService::OnAdopt(Shard& shard) {
  EndAll(shard.index());
  return absl::OkStatus();
}

void CoroutineService::OnRelease(Shard& shard) { EndAll(shard.index()); }

void CoroutineService::OnLost(Shard& shard) { EndAll(shard.index()); }

void CoroutineService::OnCompletion(Shard& shard, const Completion& completion) {
  Connection& connection = *completion.connection;
  const absl::Status status = Deliver(shard, completion);
  if (!status.ok()) Fail(shard, completion, status);
  if (Ends(completion)) End(static_cast<CoConnection*>(std::exchange(connection.context, nullptr)));
}

absl::Status CoroutineService::Deliver(Shard& shard, const Completion& completion) {
  Connection& connection = *completion.connection;
  if (completion.kind == Kind::kConnectRequest) return OnConnectRequest(shard, connection);
  if (connection.context == nullptr && Succeeded(completion) && !Ends(completion)) {
    BATON_RETURN_IF_ERROR(Start(shard, completion));
  }
  auto* const running = static_cast<CoConnection*>(connection.context);
  if (running != nullptr && running->Awaits(completion)) {
    running->Resume(completion);
    return Outcome(shard, completion);
  }
  if (completion.kind == Kind::kEstablished) return absl::OkStatus();
  const absl::Status status = OnUnawaited(shard, completion);
  // The connection of a coroutine that has returned or failed is being disconnected already.
  const bool ending = running != nullptr && running->over() && !Ends(completion);
  return ending ? absl::OkStatus() : status;
}

absl::Status CoroutineService::OnUnawaited(Shard&, const Completion& completion) {
  if (completion.kind != Kind::kReceive || !Succeeded(completion)) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "a message came while the coroutine did not wait for one, and would be lost: override "
      "OnUnawaited, or post receives only when the coroutine waits for a message next");
}

absl::Status CoroutineService::Start(Shard& shard, const Completion& completion) {
  if (free_.empty()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("all ", count_, " coroutines are in use: raise CoroutineOptions::coroutines"));
  }
  CoConnection& started = *free_.back();
  free_.pop_back();
  started.connection_ = completion.connection;
  started.shard_index_ = shard.index();
  completion.connection->context = &started;
  started.coroutine_ = Serve(started).coroutine_;
  if (started.coroutine_) return Outcome(shard, completion);
  return absl::ResourceExhaustedError(
      absl::StrCat("the coroutine's frame has ", started.frame_bytes_, " bytes, and ", frame_bytes_,
                   " are there: raise CoroutineOptions::frame_bytes"));
}

// Disconnects if the coroutine has returned. Returns its error, or that there is no room to
// disconnect.
absl::Status CoroutineService::Outcome(Shard& shard, const Completion& completion) {
  auto& resumed = *static_cast<CoConnection*>(completion.connection->context);
  if (!resumed.over()) return absl::OkStatus();
  if (!resumed.failure_.ok()) return resumed.failure_;
  if (Ends(completion)) return absl::OkStatus();
  const absl::Status status = shard.Disconnect(*completion.connection);
  return absl::IsResourceExhausted(status) ? status : absl::OkStatus();
}

void CoroutineService::Fail(Shard& shard, const Completion& completion, const absl::Status& error) {
  Connection& connection = *completion.connection;
  End(static_cast<CoConnection*>(std::exchange(connection.context, &refused_)));
  if (shard.commit_mode() == CommitMode::kAfterEachCompletion) {
    const bool has_heap = shard.worker().capacity().shard_heap_bytes != 0;
    const bool may_have_granted = has_heap && shard.heap().HasStaged();
    shard.Abandon();
    // The coroutine may have given its peer memory that is not allocated any more. What cannot be
    // revoked now is revoked later.
    if (may_have_granted) (void)HeapGrants::RevokeLost(shard);
  }
  if (!Ends(completion)) Disconnect(shard, connection);
  OnFailure(connection, error);
}

void CoroutineService::End(CoConnection* connection) {
  if (connection == nullptr || connection == &refused_) return;
  connection->Destroy();
  connection->connection_ = nullptr;
  connection->frame_bytes_ = 0;
  connection->failure_ = absl::OkStatus();
  free_.push_back(connection);
}

void CoroutineService::EndAll(uint32_t shard_index) {
  for (size_t i = 0; i < count_; ++i) {
    CoConnection& connection = connections_[i];
    if (connection.connection_ != nullptr && connection.shard_index_ == shard_index) {
      End(&connection);
    }
  }
}

}  // namespace baton
