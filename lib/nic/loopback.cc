#include "lib/nic/loopback.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/check.h"
#include "lib/nic/limits.h"

namespace baton::nic {
namespace {

using verbs::Opcode;
using verbs::QueuePairState;
using verbs::ScatterGather;
using verbs::mlx5::Executed;
using verbs::mlx5::kAtomicBytes;

constexpr int kRequestsInTurn = 16;  // of one queue pair
constexpr size_t kReserved = 1024;

bool HasImmediate(Opcode opcode) {
  return opcode == Opcode::kSendWithImmediate || opcode == Opcode::kWriteWithImmediate;
}

}  // namespace

Loopback::Loopback(Objects* objects, Complain complain)
    : objects_(objects), complain_(std::move(complain)) {
  for (auto* const list : {&active_, &running_, &waiting_}) list->reserve(kReserved);
}

void Loopback::Pieces::Add(uint8_t* at, uint64_t length) {
  list[count++] = {at, length};
  bytes += length;
}

void Loopback::Schedule(QueuePair* queue_pair) {
  if (queue_pair->scheduled) return;
  queue_pair->scheduled = true;
  active_.push_back(queue_pair->number);
}

uint64_t Loopback::next_retry_ns() const {
  uint64_t earliest = 0;
  for (const uint32_t number : waiting_) {
    const QueuePair* const queue_pair = objects_->FindQueuePair(number);
    if (queue_pair == nullptr || queue_pair->retry_at_ns == 0) continue;
    if (earliest == 0 || queue_pair->retry_at_ns < earliest) earliest = queue_pair->retry_at_ns;
  }
  return earliest;
}

bool Loopback::Run(uint64_t now_ns) {
  now_ns_ = now_ns;
  std::erase_if(waiting_, [this](uint32_t number) {
    QueuePair* const queue_pair = objects_->FindQueuePair(number);
    if (queue_pair == nullptr || queue_pair->retry_at_ns == 0) return true;
    if (queue_pair->retry_at_ns > now_ns_) return false;
    queue_pair->retry_at_ns = 0;
    Schedule(queue_pair);
    return true;
  });
  running_.swap(active_);
  for (const uint32_t number : running_) {
    QueuePair* const queue_pair = objects_->FindQueuePair(number);
    if (queue_pair == nullptr || !std::exchange(queue_pair->scheduled, false)) continue;
    Execute(queue_pair);
  }
  const bool ran = !running_.empty();
  running_.clear();
  return ran;
}

void Loopback::Execute(QueuePair* queue_pair) {
  if (queue_pair->retry_at_ns != 0) return;  // its time comes
  for (int i = 0; i < kRequestsInTurn; ++i) {
    if (queue_pair->state == QueuePairState::kError) return Flush(queue_pair);
    if (queue_pair->state != QueuePairState::kReadyToSend ||
        queue_pair->next_send == queue_pair->sends_queued()) {
      return;
    }
    if (ExecuteNext(queue_pair) == Outcome::kNotReady) return;
  }
  Schedule(queue_pair);
}

Loopback::Outcome Loopback::ExecuteNext(QueuePair* requester) {
  const absl::Status read = verbs::mlx5::ReadSend(requester->send_memory(), requester->next_send,
                                                  requester->sends_queued(), &send_);
  if (!read.ok()) {
    complain_(absl::StrCat("send queue of queue pair ", requester->number, ": ", read.message()));
    send_ = {};
    send_.slots = 1;
    return CompleteSend(requester, Status::kLocalQpError, 0);
  }
  if (send_.opcode == Opcode::kSendWithInvalidate) {  // DeviceLimits::send_with_invalidate
    return CompleteSend(requester, Status::kLocalQpError, 0);
  }
  const bool answered = verbs::IsAnswered(send_.opcode);
  Pieces local;
  if (send_.inline_data) {
    local.Add(send_.bytes.data(), send_.inline_bytes);
  } else {
    const absl::Span<const ScatterGather> sges(send_.sges.data(), send_.sge_count);
    uint64_t bytes = 0;
    for (const ScatterGather& sge : sges) bytes += sge.length;
    if (bytes > kMaxMessageBytes || (verbs::IsAtomic(send_.opcode) && bytes != kAtomicBytes)) {
      return CompleteSend(requester, Status::kLocalLengthError, 0);
    }
    if (!Find(*requester, sges, bytes, answered ? verbs::kLocalWrite : 0u, &local)) {
      return CompleteSend(requester, Status::kLocalProtectionError, 0);
    }
  }
  QueuePair* const responder = PeerOf(*requester);
  if (responder == nullptr) return CompleteSend(requester, Status::kRetryExceeded, 0);
  if (verbs::IsAtomic(send_.opcode)) return ExecuteAtomic(requester, responder, local);
  if (answered) return ExecuteRead(requester, responder, local);
  if (verbs::mlx5::HasRemoteAddress(send_.opcode)) return ExecuteWrite(requester, responder, local);
  return ExecuteSend(requester, responder, local);
}

Loopback::Outcome Loopback::ExecuteSend(QueuePair* requester, QueuePair* responder,
                                        const Pieces& local) {
  if (!HasReceive(responder)) return Wait(requester);
  std::array<ScatterGather, verbs::mlx5::kMaxSegments> sges;
  const uint32_t slot = responder->next_receive & (responder->receive_slots - 1);
  const size_t count =
      verbs::mlx5::ReadReceive(responder->receives + size_t{slot} * responder->receive_bytes,
                               responder->receive_bytes, absl::MakeSpan(sges));
  uint64_t room = 0;
  for (size_t i = 0; i < count; ++i) room += sges[i].length;
  if (local.bytes > room) {
    CompleteReceive(responder, MLX5_CQE_RESP_SEND, Status::kLocalLengthError, 0);
    return Refuse(requester, Status::kRemoteInvalidRequest, responder);
  }
  Pieces remote;
  if (!Find(*responder, {sges.data(), count}, local.bytes, verbs::kLocalWrite, &remote)) {
    CompleteReceive(responder, MLX5_CQE_RESP_SEND, Status::kLocalProtectionError, 0);
    return Refuse(requester, Status::kRemoteOperationError, responder);
  }
  Copy(local, remote);
  CompleteReceive(responder,
                  HasImmediate(send_.opcode) ? MLX5_CQE_RESP_SEND_IMM : MLX5_CQE_RESP_SEND,
                  Status::kSuccess, local.bytes);
  return CompleteSend(requester, Status::kSuccess, local.bytes);
}

Loopback::Outcome Loopback::ExecuteWrite(QueuePair* requester, QueuePair* responder,
                                         const Pieces& local) {
  Pieces remote;
  if (!FindRemote(*responder, local.bytes, verbs::kRemoteWrite, &remote)) {
    return Refuse(requester, Status::kRemoteAccessError, responder);
  }
  if (HasImmediate(send_.opcode) && !HasReceive(responder)) return Wait(requester);
  Copy(local, remote);
  if (HasImmediate(send_.opcode)) {
    CompleteReceive(responder, MLX5_CQE_RESP_WR_IMM, Status::kSuccess, local.bytes);
  }
  return CompleteSend(requester, Status::kSuccess, local.bytes);
}

Loopback::Outcome Loopback::ExecuteRead(QueuePair* requester, QueuePair* responder,
                                        const Pieces& local) {
  Pieces remote;
  if (!FindRemote(*responder, local.bytes, verbs::kRemoteRead, &remote)) {
    return Refuse(requester, Status::kRemoteAccessError, responder);
  }
  Copy(remote, local);
  return CompleteSend(requester, Status::kSuccess, local.bytes);
}

Loopback::Outcome Loopback::ExecuteAtomic(QueuePair* requester, QueuePair* responder,
                                          const Pieces& local) {
  uint8_t* const at = objects_->Reach(responder->domain, send_.rkey, send_.remote_address,
                                      kAtomicBytes, verbs::kRemoteAtomic);
  if (at == nullptr) return Refuse(requester, Status::kRemoteAccessError, responder);
  // The address may be aligned, and the memory behind it not.
  if (send_.remote_address % kAtomicBytes != 0 ||
      reinterpret_cast<uintptr_t>(at) % kAtomicBytes != 0) {
    return Refuse(requester, Status::kRemoteInvalidRequest, responder);
  }
  std::atomic_ref word(*reinterpret_cast<uint64_t*>(at));
  uint64_t before = send_.compare_add;
  if (send_.opcode == Opcode::kCompareAndSwap) {
    word.compare_exchange_strong(before, send_.swap);  // on failure `before` is what is there
  } else {
    before = word.fetch_add(send_.compare_add);
  }
  Pieces answer;
  answer.Add(reinterpret_cast<uint8_t*>(&before), sizeof(before));
  Copy(answer, local);
  return CompleteSend(requester, Status::kSuccess, kAtomicBytes);
}

// The first `bytes` of the list. False: a key, a bound or a right is wrong.
bool Loopback::Find(const QueuePair& queue_pair, absl::Span<const ScatterGather> sges,
                    uint64_t bytes, uint32_t access, Pieces* pieces) const {
  for (const ScatterGather& sge : sges) {
    if (sge.length == 0 || bytes == 0) continue;
    uint8_t* const at =
        objects_->Reach(queue_pair.domain, sge.lkey, sge.address, sge.length, access);
    if (at == nullptr) return false;
    const uint64_t here = std::min<uint64_t>(sge.length, bytes);
    pieces->Add(at, here);
    bytes -= here;
  }
  return true;
}

// Likewise for the memory that the request in execution names at its peer.
bool Loopback::FindRemote(const QueuePair& responder, uint64_t bytes, uint32_t access,
                          Pieces* pieces) const {
  if (bytes == 0) return true;
  uint8_t* const at =
      objects_->Reach(responder.domain, send_.rkey, send_.remote_address, bytes, access);
  if (at == nullptr) return false;
  pieces->Add(at, bytes);
  return true;
}

// nullptr: it does not answer. A packet of who is not its peer is dropped.
QueuePair* Loopback::PeerOf(const QueuePair& queue_pair) const {
  QueuePair* const peer = objects_->FindQueuePair(queue_pair.peer);
  const bool answers = peer != nullptr && peer->state == QueuePairState::kReadyToSend &&
                       peer->peer == queue_pair.number;
  return answers ? peer : nullptr;
}

bool Loopback::HasReceive(QueuePair* queue_pair) {
  const uint16_t ahead =
      static_cast<uint16_t>(queue_pair->receives_queued() - queue_pair->next_receive);
  if (ahead <= queue_pair->receive_slots) return ahead > 0;
  complain_(absl::StrCat("receive queue of queue pair ", queue_pair->number, ": ", ahead,
                         " are posted, and it has ", queue_pair->receive_slots, " slots"));
  Fail(queue_pair);
  return false;
}

// `from` has at least as many bytes as `to`. They may overlap.
void Loopback::Copy(const Pieces& from, const Pieces& to) {
  BATON_CHECK(from.bytes >= to.bytes);
  size_t source = 0;
  uint64_t done = 0;  // of the source
  for (size_t i = 0; i < to.count; ++i) {
    for (uint64_t filled = 0; filled < to.list[i].length;) {
      const Piece& piece = from.list[source];
      const uint64_t here = std::min(piece.length - done, to.list[i].length - filled);
      std::memmove(to.list[i].at + filled, piece.at + done, here);
      filled += here;
      done += here;
      if (done == piece.length) {
        ++source;
        done = 0;
      }
    }
  }
}

// The responder fails with its requester, as one that has sent such a NAK.
Loopback::Outcome Loopback::Refuse(QueuePair* requester, Status status, QueuePair* responder) {
  const Outcome outcome = CompleteSend(requester, status, 0);
  Fail(responder);
  return outcome;
}

Loopback::Outcome Loopback::CompleteSend(QueuePair* queue_pair, Status status, uint64_t bytes) {
  Executed executed;
  executed.status = status;
  executed.code = verbs::mlx5::CodeOf(send_.opcode);
  executed.counter = queue_pair->next_send;
  executed.qp_number = queue_pair->number;
  executed.bytes = static_cast<uint32_t>(bytes);
  queue_pair->next_send = static_cast<uint16_t>(queue_pair->next_send + send_.slots);
  queue_pair->rnr_tries = 0;
  if (send_.signalled || status != Status::kSuccess) {
    Tell(queue_pair, queue_pair->send_queue, executed);
  }
  if (status == Status::kSuccess) return Outcome::kDone;
  Fail(queue_pair);
  return Outcome::kFailed;
}

void Loopback::CompleteReceive(QueuePair* queue_pair, uint8_t kind, Status status, uint64_t bytes) {
  Executed executed;
  executed.kind = kind;
  executed.status = status;
  executed.counter = queue_pair->next_receive;
  executed.qp_number = queue_pair->number;
  executed.bytes = static_cast<uint32_t>(bytes);
  executed.immediate = send_.immediate;
  ++queue_pair->next_receive;
  Tell(queue_pair, queue_pair->receive_queue, executed);
}

void Loopback::Tell(QueuePair* queue_pair, CompletionQueue* queue, const Executed& executed) {
  if (queue->Write(executed)) return;
  if (queue_pair->state == QueuePairState::kError) return;
  complain_(absl::StrCat("a completion queue of queue pair ", queue_pair->number, " is overrun"));
  Fail(queue_pair);
}

// The client's driver stores a record, fences, and looks at `failed`.
void Loopback::Fail(QueuePair* queue_pair) {
  if (queue_pair->state == QueuePairState::kError) return;
  queue_pair->state = QueuePairState::kError;
  queue_pair->retry_at_ns = 0;
  std::atomic_ref(*queue_pair->failed).store(1, std::memory_order_release);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  Schedule(queue_pair);
}

// Requests that are queued meanwhile wait for the next look.
void Loopback::Flush(QueuePair* queue_pair) {
  const uint16_t queued = queue_pair->sends_queued();
  while (queue_pair->next_send != queued) {
    if (!verbs::mlx5::ReadSend(queue_pair->send_memory(), queue_pair->next_send, queued, &send_)
             .ok()) {
      queue_pair->next_send = queued;  // where the next request begins is nowhere
      break;
    }
    CompleteSend(queue_pair, Status::kFlushError, 0);
  }
  FlushReceives(queue_pair);
}

void Loopback::FlushReceives(QueuePair* queue_pair) {
  const uint16_t queued = queue_pair->receives_queued();
  if (static_cast<uint16_t>(queued - queue_pair->next_receive) > queue_pair->receive_slots) {
    queue_pair->next_receive = queued;  // HasReceive complains
  }
  while (queue_pair->next_receive != queued) {
    CompleteReceive(queue_pair, MLX5_CQE_RESP_SEND, Status::kFlushError, 0);
  }
}

Loopback::Outcome Loopback::Wait(QueuePair* queue_pair) {
  if (queue_pair->rnr_retry_count < kEndlessRnrRetries &&
      queue_pair->rnr_tries >= queue_pair->rnr_retry_count) {
    return CompleteSend(queue_pair, Status::kRnrRetryExceeded, 0);
  }
  if (queue_pair->rnr_tries < kEndlessRnrRetries) ++queue_pair->rnr_tries;
  queue_pair->retry_at_ns = std::max<uint64_t>(now_ns_, 1) + queue_pair->rnr_timer_us * 1000ull;
  waiting_.push_back(queue_pair->number);
  return Outcome::kNotReady;
}

}  // namespace baton::nic
