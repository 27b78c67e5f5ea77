#include "lib/nic/client_queues.h"

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"

namespace baton::verbs::soft {
namespace {

// Shared by all queues of a thread. Nothing is kept in it between calls.
mlx5::FoundSend& TheScratch() {
  constinit static thread_local mlx5::FoundSend scratch = {};
  return scratch;
}

uint8_t KindOf(const Completion& completion) {
  if (completion.opcode == CompletionOpcode::kReceiveWithImmediate) return MLX5_CQE_RESP_WR_IMM;
  if (completion.has_immediate) return MLX5_CQE_RESP_SEND_IMM;
  return completion.has_invalidate ? MLX5_CQE_RESP_SEND_INV : MLX5_CQE_RESP_SEND;
}

}  // namespace

uint32_t ClientCursor::Look() {
  if (lost_) return 0;
  queued_ = static_cast<uint16_t>(mlx5::LoadRecord(record_));
  return ahead();
}

void ClientCursor::Pass(uint32_t slots) {
  next_ = static_cast<uint16_t>(next_ + slots);
  lost_ = slots == 0;
}

bool ClientSends::Fetch() {
  if (!cursor_.HasMore()) return false;
  mlx5::FoundSend& found = TheScratch();
  absl::Status status = mlx5::ReadSend(queue_, cursor_.next(), cursor_.queued(), seen_, &found);
  if (status.ok()) status = CheckLimits(found);
  if (status.ok()) {
    Push(found);
  } else {
    PushMalformed();
    error_.Update(status);
  }
  cursor_.Pass(found.slots);
  See();
  return true;
}

uint32_t ClientSends::Waiting() {
  const uint32_t waiting = cursor_.Look();
  if (waiting > 0) See();
  return std::min(waiting, kFlushedAtOnce);
}

absl::Status ClientSends::CheckLimits(const mlx5::FoundSend& found) const {
  if (found.sge_count > window().max_sges()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a request of ", found.sge_count, " buffers, at most ", window().max_sges()));
  }
  if (found.inline_bytes > window().max_inline()) {
    return absl::InvalidArgumentError(absl::StrCat("inline data of ", found.inline_bytes,
                                                   " bytes, at most ", window().max_inline()));
  }
  return absl::OkStatus();
}

void ClientSends::Push(const mlx5::FoundSend& found) {
  SendWork& work = window().Push(absl::MakeConstSpan(found.sges).first(found.sge_count));
  work = {};
  work.id = cursor_.next();
  work.remote_address = found.remote_address;
  work.compare_add = found.compare_add;
  work.swap = found.swap;
  work.length = found.inline_bytes;
  for (uint32_t i = 0; i < found.sge_count; ++i) work.length += found.sges[i].length;
  work.rkey = found.rkey;
  work.immediate = found.immediate;
  work.opcode = found.opcode;
  work.fence = found.fence;
  work.solicited = found.solicited;
  work.signalled = found.signalled;
  work.inline_data = found.inline_data;
  work.sge_count = static_cast<uint8_t>(found.sge_count);
  std::copy_n(found.bytes.begin(), found.inline_bytes, window().inline_data(window().tail() - 1));
}

void ClientSends::PushMalformed() {
  SendWork& work = window().Push({});
  work = {};
  work.id = cursor_.next();
  work.malformed = true;
}

bool ClientReceives::Fetch() {
  if (!cursor_.HasMore()) return false;
  const bool malformed = cursor_.ahead() > queue_.slot_count;
  const uint32_t slot = cursor_.next() & (queue_.slot_count - 1);
  const auto sges = absl::MakeSpan(TheScratch().sges);
  const size_t count = malformed
                           ? 0
                           : mlx5::ReadReceive(queue_.slots + size_t{slot} * queue_.slot_bytes,
                                               queue_.slot_bytes, sges);
  if (malformed) {
    error_ = absl::InvalidArgumentError(absl::StrCat(
        cursor_.ahead(), " receives are posted, and there are ", queue_.slot_count, " slots"));
  }
  ReceiveWork& work = window().Push(sges.first(count));
  work = {cursor_.next(), 0, static_cast<uint8_t>(count), malformed};
  for (const ScatterGather& sge : sges.first(count)) work.length += sge.length;
  cursor_.Pass(malformed ? 0 : 1);
  return true;
}

SharedReceives::~SharedReceives() {
  for (uint64_t i = window().head(); i != window().tail(); ++i) {
    if (window()[i].id != kNoSlot) reader_->Return(static_cast<uint16_t>(window()[i].id));
  }
}

bool SharedReceives::Fetch() {
  const auto sges = absl::MakeSpan(TheScratch().sges);
  const auto found = reader_->Take(sges);
  if (found.ok() && !found->has_value()) return false;
  const bool malformed = !found.ok() || (*found)->sge_count > window().max_sges();
  const size_t count = malformed ? 0 : (*found)->sge_count;
  ReceiveWork& work = window().Push(sges.first(count));
  work = {found.ok() ? (*found)->slot : kNoSlot, 0, static_cast<uint8_t>(count), malformed};
  for (const ScatterGather& sge : sges.first(count)) work.length += sge.length;
  taken_();
  return true;
}

mlx5::Executed ClientCompletions::Common(uint64_t id, const Completion& completion) const {
  mlx5::Executed executed;
  executed.status = completion.status;
  executed.counter = static_cast<uint16_t>(id);
  executed.qp_number = qp_number_;
  executed.bytes = completion.byte_len;
  executed.immediate = completion.immediate;
  return executed;
}

bool ClientCompletions::CompleteSend(const SendWork& work, const Completion& completion) {
  if (!work.signalled && completion.status == CompletionStatus::kSuccess) return true;
  mlx5::Executed executed = Common(work.id, completion);
  executed.code = mlx5::CodeOf(work.opcode);
  return sends_->Write(executed);
}

bool ClientCompletions::CompleteReceive(const ReceiveWork& work, const Completion& completion) {
  if (srq_number_ != 0 && work.id == kNoSlot) return true;
  mlx5::Executed executed = Common(work.id, completion);
  executed.kind = KindOf(completion);
  executed.srq_number = srq_number_;
  return receives_->Write(executed);
}

}  // namespace baton::verbs::soft
