#include "lib/verbs/mlx5/shared_receive_reader.h"

#include <atomic>

#include "absl/strings/str_cat.h"
#include "lib/base/status_macros.h"
#include "lib/verbs/mlx5/request_reader.h"

namespace baton::verbs::mlx5 {
namespace {

// Loads the link once, so a client that writes meanwhile changes nothing between a check and a use.
uint16_t NextOf(const uint8_t* slot) {
  const auto* const link = reinterpret_cast<const mlx5_wqe_srq_next_seg*>(slot);
  return be16toh(
      std::atomic_ref(const_cast<__be16&>(link->next_wqe_index)).load(std::memory_order_relaxed));
}

}  // namespace

// One slot is always left unposted, so that the last posted one names it.
absl::Status SharedReceiveReader::Check(uint32_t ahead) const {
  if (ahead >= queue_.slot_count) {
    return absl::InvalidArgumentError(absl::StrCat("the record is ", ahead, " receives ahead, of ",
                                                   queue_.slot_count - 1, " at most"));
  }
  if (next_ >= queue_.slot_count) {
    return absl::InvalidArgumentError(
        absl::StrCat("receive ", taken_, " is in slot ", next_, " of ", queue_.slot_count));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<SharedReceiveReader::Receive>> SharedReceiveReader::Take(
    absl::Span<ScatterGather> sges) {
  BATON_RETURN_IF_ERROR(error_);
  if (!returned_.empty()) {
    const uint16_t slot = returned_.back();
    returned_.pop_back();
    return Receive{slot, Read(slot, sges)};
  }
  const uint32_t ahead = Ahead();
  if (ahead == 0) return std::nullopt;
  if (error_ = Check(ahead); !error_.ok()) return error_;
  const Receive receive = {next_, Read(next_, sges)};
  next_ = NextOf(queue_.slots + size_t{next_} * queue_.slot_bytes);
  ++taken_;
  return receive;
}

size_t SharedReceiveReader::Read(uint16_t slot, absl::Span<ScatterGather> sges) const {
  return ReadReceive(queue_.slots + size_t{slot} * queue_.slot_bytes + kSegmentBytes,
                     queue_.slot_bytes - kSegmentBytes, sges);
}

uint32_t SharedReceiveReader::Waiting() {
  const uint32_t ahead = Ahead();
  if (error_.ok() && ahead > 0) error_ = Check(ahead);
  return error_.ok() ? ahead + static_cast<uint32_t>(returned_.size()) : 0;
}

}  // namespace baton::verbs::mlx5
