// The inline half of SendQueue and ReceiveQueue, with which a driver writes a plain request
// directly where the device reads it.
#ifndef LIB_VERBS_MLX5_POSTING_H_
#define LIB_VERBS_MLX5_POSTING_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "lib/verbs/mlx5/format.h"
#include "lib/verbs/mlx5/receive_queue.h"
#include "lib/verbs/mlx5/send_queue.h"
#include "lib/verbs/verbs.h"

namespace baton::verbs::mlx5 {

// The opcode of a send says this about the beginning of its request, in one word.
class Beginning {
 public:
  constexpr Beginning() = default;
  constexpr explicit Beginning(Opcode opcode)
      : word_(CodeOf(opcode) |
              (1u + (HasRemoteAddress(opcode) ? 1 : 0) + (IsAtomic(opcode) ? 1 : 0)) << 8 |
              (opcode == Opcode::kSendWithImmediate || opcode == Opcode::kWriteWithImmediate
                   ? kImmediate
                   : 0) |
              (opcode == Opcode::kSendWithInvalidate ? kInvalidate : 0)) {}

  constexpr uint32_t code() const { return word_ & 0xff; }           // MLX5_OPCODE_*
  constexpr uint32_t segments() const { return word_ >> 8 & 0xff; }  // before those of its data
  constexpr bool carries_word() const { return word_ >= kImmediate; }
  constexpr bool immediate() const { return (word_ & kImmediate) != 0; }

 private:
  static constexpr uint32_t kImmediate = 1 << 16, kInvalidate = 1 << 17;
  uint32_t word_ = 0;
};

inline constexpr std::array<Beginning, kOpcodeCount> kBeginnings = [] {
  std::array<Beginning, kOpcodeCount> all;
  for (uint8_t i = 0; i < kOpcodeCount; ++i) all[i] = Beginning(static_cast<Opcode>(i));
  return all;
}();

constexpr Beginning BeginningOf(Opcode opcode) { return kBeginnings[static_cast<uint8_t>(opcode)]; }

// Writes a segment of 16 bytes from two words, as they lie in memory.
inline void WriteSegment(uint8_t* at, uint64_t first, uint64_t second) {
  const uint64_t words[] = {first, second};
  static_assert(sizeof(words) == kSegmentBytes);
  std::memcpy(at, words, sizeof(words));
}

inline void WriteRemote(uint8_t* at, uint64_t address, uint32_t rkey) {
  static_assert(offsetof(mlx5_wqe_raddr_seg, rkey) == 8);
  WriteSegment(at, htobe64(address), htobe32(rkey));
}

inline void WriteData(uint8_t* at, const ScatterGather& sge) {
  static_assert(offsetof(mlx5_wqe_data_seg, lkey) == 4 && offsetof(mlx5_wqe_data_seg, addr) == 8);
  WriteSegment(at, htobe32(sge.length) | uint64_t{htobe32(sge.lkey)} << 32, htobe64(sge.address));
}

[[gnu::always_inline]] inline void SendQueue::WriteControl(Beginning beginning, uint32_t how,
                                                           uint32_t immediate, uint16_t counter,
                                                           uint32_t segments, uint8_t* at) const {
  static_assert(offsetof(mlx5_wqe_ctrl_seg, qpn_ds) == 4 &&
                offsetof(mlx5_wqe_ctrl_seg, fm_ce_se) == 11 &&
                offsetof(mlx5_wqe_ctrl_seg, imm) == 12);
  const uint32_t which = uint32_t{counter} << 8 | beginning.code();
  WriteSegment(at, htobe32(which) | uint64_t{number_ | segments << 24} << 32,
               uint64_t{htobe32(immediate)} << 32 | how << 24);
}

// The values of fm_ce_se of a request's control segment; HowOf() returns one.
inline constexpr std::array<uint8_t, 4> kHows = [] {
  std::array<uint8_t, 4> all = {};
  for (size_t i = 0; i < all.size(); ++i) {
    all[i] =
        static_cast<uint8_t>(MLX5_WQE_CTRL_CQ_UPDATE | ((i & 1) != 0 ? MLX5_WQE_CTRL_FENCE : 0) |
                             ((i & 2) != 0 ? MLX5_WQE_CTRL_SOLICITED : 0));
  }
  return all;
}();
constexpr uint32_t HowOf(bool fence, bool solicited) {
  return kHows[(fence ? 1u : 0u) | (solicited ? 2u : 0u)];
}

// A request that fits one slot does not go around the end of the queue.
template <typename Send>
[[gnu::always_inline]] inline bool SendQueue::AddPlain(const Send& send, const ScatterGather& sge,
                                                       Batch* batch) {
  const uint16_t counter = batch->counter;
  if (static_cast<uint16_t>(counter - batch->sent) >= memory_.slot_count) [[unlikely]]
    return false;
  const uint32_t slot = counter & (memory_.slot_count - 1);
  const auto end = static_cast<uint16_t>(counter + 1);
  memory_.notes[slot] = {send.wr_id(), end, 0};
  uint8_t* at = memory_.slots + size_t{slot} * kSlotBytes;
  const Beginning beginning = BeginningOf(send.opcode());
  uint32_t immediate = 0;
  if (beginning.carries_word()) [[unlikely]]
    immediate = beginning.immediate() ? send.immediate() : send.invalidate_rkey();
  WriteControl(beginning, HowOf(send.fence(), send.solicited()), immediate, counter,
               beginning.segments() + 1, at);
  if (HasRemoteAddress(send.opcode())) {
    at += kSegmentBytes;
    WriteRemote(at, send.remote_address(), send.rkey());
  }
  WriteData(at + kSegmentBytes, sge);
  batch->last = counter;
  batch->counter = end;
  return true;
}

[[gnu::always_inline]] inline bool ReceiveQueue::AddPlain(uint64_t wr_id, const ScatterGather& sge,
                                                          Batch* batch) {
  const uint16_t counter = batch->counter;
  if (static_cast<uint16_t>(counter - batch->received) >= memory_.slot_count) [[unlikely]]
    return false;
  const uint32_t slot = counter & (memory_.slot_count - 1);
  memory_.wr_ids[slot] = wr_id;
  uint8_t* const at = memory_.slots + size_t{slot} * memory_.slot_bytes;
  WriteData(at, sge);
  if (memory_.slot_bytes > kSegmentBytes) WriteListEnd(at + kSegmentBytes);
  batch->counter = static_cast<uint16_t>(counter + 1);
  return true;
}

}  // namespace baton::verbs::mlx5

#endif  // LIB_VERBS_MLX5_POSTING_H_
