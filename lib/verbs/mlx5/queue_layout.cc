#include "lib/verbs/mlx5/queue_layout.h"

#include <algorithm>
#include <bit>

#include "absl/strings/str_cat.h"

namespace baton::verbs::mlx5 {
namespace {

constexpr uint32_t kSegmentsOfReceive = 32;  // a power of two below kMaxSegments

absl::Status TooMuch(absl::string_view what, uint64_t asked, uint64_t limit) {
  return absl::InvalidArgumentError(
      absl::StrCat(what, ": ", asked, " asked for, and mlx5's format has ", limit, " at most"));
}

template <typename Thing>
Thing* At(uint8_t* begin, uint64_t offset) {
  return reinterpret_cast<Thing*>(begin + offset);
}

}  // namespace

SendQueueLimits LimitsOf(const QueuePairOptions& options) {
  return {std::max(options.max_scatter_gather, 1u), options.max_inline_data};
}

absl::StatusOr<QueuePairLayout> LayOut(const QueuePairOptions& options) {
  const SendQueueLimits limits = LimitsOf(options);
  if (limits.scatter_gather > kSegmentsOfReceive) {
    return TooMuch("max_scatter_gather", limits.scatter_gather, kSegmentsOfReceive);
  }
  constexpr uint32_t kMostInline = (kMaxSegments - 2) * kSegmentBytes - sizeof(uint32_t);
  if (limits.inline_bytes > kMostInline) {
    return TooMuch("max_inline_data", limits.inline_bytes, kMostInline);
  }
  const uint64_t requests = std::max(options.max_send_requests, 1u);
  const uint64_t empty = std::min<uint64_t>(options.max_empty_writes, requests);
  const uint64_t sends = (requests - empty) * MostSlotsOf(limits) + empty;  // of one slot each
  if (sends > kMaxSlots) return TooMuch("slots of max_send_requests", sends, kMaxSlots);
  const bool shared = options.shared_receive_queue != nullptr;
  const uint32_t receives = shared ? 0 : std::max(options.max_receive_requests, 1u);
  if (receives > kMaxSlots) return TooMuch("max_receive_requests", receives, kMaxSlots);
  QueuePairLayout layout;
  layout.send_slots = std::bit_ceil(static_cast<uint32_t>(sends));
  layout.receive_slots = shared ? 0 : std::bit_ceil(receives);
  layout.receive_bytes = std::bit_ceil(limits.scatter_gather) * kSegmentBytes;
  return layout;
}

// A slot begins with its link, and one slot is always left unposted.
absl::StatusOr<SharedReceiveQueueLayout> LayOutShared(uint32_t entries,
                                                      uint32_t max_scatter_gather) {
  if (max_scatter_gather >= kSegmentsOfReceive) {
    return TooMuch("max_scatter_gather", max_scatter_gather, kSegmentsOfReceive - 1);
  }
  if (entries >= kMaxSlots) return TooMuch("entries", entries, kMaxSlots - 1);
  return SharedReceiveQueueLayout{
      std::bit_ceil(std::max(entries, 1u) + 1),
      std::bit_ceil(std::max(max_scatter_gather, 1u) + 1) * kSegmentBytes};
}

SendQueueMemory QueuePairLayout::SendsAt(uint8_t* begin) const {
  return {begin + kSends, At<__be32>(begin, kRecords) + MLX5_SND_DBR, At<SendNote>(begin, notes()),
          At<QueueCursors>(begin, kCursors), send_slots};
}

ReceiveQueueMemory QueuePairLayout::ReceivesAt(uint8_t* begin) const {
  return {begin + receives(),
          At<__be32>(begin, kRecords) + MLX5_RCV_DBR,
          At<uint64_t>(begin, wr_ids()),
          At<QueueCursors>(begin, kCursors),
          receive_slots,
          receive_bytes};
}

QueuePairMemory QueuePairLayout::MemoryAt(uint8_t* begin) const {
  return {SendsAt(begin), ReceivesAt(begin), At<__be32>(begin, kRecords), FailedAt(begin)};
}

CompletingQueuePair QueuePairLayout::CompletingAt(uint8_t* begin, uint32_t number,
                                                  uint16_t place) const {
  return {number,
          place,
          At<SendNote>(begin, notes()),
          send_slots,
          At<uint64_t>(begin, wr_ids()),
          receive_slots,
          At<QueueCursors>(begin, kCursors)};
}

CompletionQueueMemory CompletionQueueLayout::At(uint8_t* begin) const {
  auto* const records = mlx5::At<__be32>(begin, kRecords);
  return {begin + kEntries,
          records,
          mlx5::At<uint64_t>(begin, kTaken),
          entry_count,
          sizeof(mlx5_cqe64),
          records + 1,
          mlx5::At<uint32_t>(begin, kArming),
          mlx5::At<uint32_t>(begin, kFormer)};
}

SharedReceiveQueueMemory SharedReceiveQueueLayout::At(uint8_t* begin) const {
  return {begin + kSlots,
          mlx5::At<__be32>(begin, kRecord),
          mlx5::At<uint64_t>(begin, kFreed),
          mlx5::At<uint64_t>(begin, wr_ids()),
          mlx5::At<uint16_t>(begin, order()),
          slot_count,
          slot_bytes};
}

}  // namespace baton::verbs::mlx5
