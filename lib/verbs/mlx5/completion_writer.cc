#include "lib/verbs/mlx5/completion_writer.h"

#include <atomic>
#include <cstddef>
#include <cstring>

namespace baton::verbs::mlx5 {
namespace {

constexpr uint8_t kUnwritten = MLX5_CQE_INVALID << 4 | 1;

mlx5_cqe64 EntryOf(const Executed& executed) {
  mlx5_cqe64 entry = {};
  entry.imm_inval_pkey = htobe32(executed.immediate);
  entry.byte_cnt = htobe32(executed.bytes);
  entry.srqn_uidx = htobe32(executed.srq_number);
  entry.sop_drop_qpn = htobe32(uint32_t{executed.code} << 24 | executed.qp_number);
  entry.wqe_counter = htobe16(executed.counter);
  if (executed.status == CompletionStatus::kSuccess) return entry;
  mlx5_err_cqe error = {};
  error.vendor_err_synd = executed.vendor_error;
  error.syndrome = SyndromeOf(executed.status);
  error.srqn = entry.srqn_uidx;
  static_assert(offsetof(mlx5_err_cqe, srqn) == offsetof(mlx5_cqe64, srqn_uidx));
  error.s_wqe_opcode_qpn = entry.sop_drop_qpn;
  error.wqe_counter = entry.wqe_counter;
  static_assert(sizeof(error) == sizeof(entry));
  std::memcpy(&entry, &error, sizeof(entry));
  return entry;
}

uint8_t KindOf(const Executed& executed) {
  if (executed.status == CompletionStatus::kSuccess) return executed.kind;
  return executed.kind == MLX5_CQE_REQ ? MLX5_CQE_REQ_ERR : MLX5_CQE_RESP_ERR;
}

uint8_t* EntryAt(const FoundCompletionQueue& queue, uint32_t index) {
  uint8_t* const slot = queue.entries + size_t{index & (queue.entry_count - 1)} * queue.entry_bytes;
  return slot + queue.entry_bytes - sizeof(mlx5_cqe64);
}

}  // namespace

// A driver looks at no entry behind the next one, so only that is marked. Memory that no completion
// has reached stays untouched.
CompletionWriter::CompletionWriter(const FoundCompletionQueue& queue) : queue_(queue) { Mark(0); }

void CompletionWriter::Mark(uint32_t index) {
  uint8_t& owner = EntryAt(queue_, index)[offsetof(mlx5_cqe64, op_own)];
  std::atomic_ref(owner).store(kUnwritten, std::memory_order_release);
}

bool CompletionWriter::Write(const Executed& executed) {
  const uint32_t consumed = LoadRecord(queue_.record);
  failed_ = failed_ || ((written_ - consumed) & kConsumedMask) >= queue_.entry_count;
  if (failed_) return false;
  marked_ = marked_ || written_ + 1 == queue_.entry_count;
  if (!marked_) Mark(written_ + 1);
  const mlx5_cqe64 entry = EntryOf(executed);
  uint8_t* const at = EntryAt(queue_, written_);
  std::memcpy(at, &entry, offsetof(mlx5_cqe64, op_own));
  BeforeOwnerByte();
  const uint8_t owner =
      static_cast<uint8_t>(KindOf(executed) << 4 | OwnerOf(written_, queue_.entry_count));
  std::atomic_ref(at[offsetof(mlx5_cqe64, op_own)]).store(owner, std::memory_order_release);
  written_ = (written_ + 1) & kConsumedMask;
  return true;
}

}  // namespace baton::verbs::mlx5
