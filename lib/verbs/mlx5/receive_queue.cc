#include "lib/verbs/mlx5/receive_queue.h"

#include <atomic>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/base/status.h"
#include "lib/verbs/mlx5/posting.h"

namespace baton::verbs::mlx5 {
absl::Status CheckBuffers(absl::Span<const ScatterGather> sges, uint32_t most) {
  if (sges.size() > most) {
    return absl::InvalidArgumentError(absl::StrCat("sges: ", sges.size(), ", at most ", most));
  }
  for (const ScatterGather& sge : sges) BATON_RETURN_IF_ERROR(CheckLength(sge));
  return absl::OkStatus();
}

// A list that is shorter than its slot ends with a key that no region has. A buffer without bytes
// has no segment.
void WriteBuffers(absl::Span<const ScatterGather> sges, uint8_t* at, const uint8_t* end) {
  for (const ScatterGather& sge : sges) {
    if (sge.length == 0) continue;
    WriteData(at, sge);
    at += kSegmentBytes;
  }
  if (at != end) WriteListEnd(at);
}

bool ReceiveQueue::Add(const ReceiveRequest& request, Batch* batch) {
  if (static_cast<uint16_t>(batch->counter - batch->received) >= memory_.slot_count ||
      !CheckBuffers(request.sges, memory_.slot_bytes / kSegmentBytes).ok()) {
    return false;
  }
  const uint32_t slot = batch->counter & (memory_.slot_count - 1);
  memory_.wr_ids[slot] = request.wr_id;
  uint8_t* const at = memory_.slots + size_t{slot} * memory_.slot_bytes;
  WriteBuffers(request.sges, at, at + memory_.slot_bytes);
  ++batch->counter;
  return true;
}

absl::Status ReceiveQueue::Post(absl::Span<const ReceiveRequest> requests, size_t* posted) {
  Batch batch = Begin();
  *posted = 0;
  absl::Status status;
  for (const ReceiveRequest& request : requests) {
    if (!Add(request, &batch)) [[unlikely]] {
      status = CheckBuffers(request.sges, memory_.slot_bytes / kSegmentBytes);
      if (status.ok()) {
        status = absl::ResourceExhaustedError(
            absl::StrCat("receive queue full: ", memory_.slot_count, " requests are outstanding"));
      }
      break;
    }
    ++*posted;
  }
  if (*posted > 0) Queue(batch);
  return status;
}

absl::StatusOr<std::optional<uint64_t>> ReceiveQueue::LastQueued() const {
  const uint16_t end = queued();
  const uint16_t received = LoadCursor(memory_.cursors->received);
  const auto outstanding = static_cast<uint16_t>(end - received);
  if (outstanding > memory_.slot_count) {
    return absl::DataLossError(absl::StrCat("the record of the receive queue says ", end, ", and ",
                                            received, " have completed of a queue of ",
                                            memory_.slot_count,
                                            ": another process has written over one of them"));
  }
  if (outstanding == 0) return std::nullopt;
  const uint32_t slot = static_cast<uint16_t>(end - 1) & (memory_.slot_count - 1);
  return std::atomic_ref(memory_.wr_ids[slot]).load();
}

FreedWord SharedReceiveQueue::Freed() const {
  return UnpackFreed(std::atomic_ref(*memory_.freed).load(std::memory_order_acquire));
}

// The compiler moves no earlier store behind it.
void SharedReceiveQueue::StoreFreed(const FreedWord& word) {
  std::atomic_ref(*memory_.freed).store(Pack(word), std::memory_order_release);
}

// The mask keeps the slot inside the queue even if another process has overwritten `order`.
uint32_t SharedReceiveQueue::SlotAt(uint16_t position) const {
  const uint32_t place = Place(position);
  return (memory_.order[place] ^ place) & (memory_.slot_count - 1);
}

absl::Status SharedReceiveQueue::PostReceive(absl::Span<const ReceiveRequest> requests,
                                             size_t* posted) {
  *posted = 0;
  absl::Status status;
  const uint16_t freed = Freed().freed;
  uint16_t counter = receives_queued();
  for (const ReceiveRequest& request : requests) {
    status = CheckBuffers(request.sges, memory_.slot_bytes / kSegmentBytes - 1);
    if (!status.ok()) break;
    if (static_cast<uint16_t>(counter - freed) >= memory_.slot_count - 1) {
      status = absl::ResourceExhaustedError(absl::StrCat(
          "shared receive queue full: ", memory_.slot_count - 1, " requests are outstanding"));
      break;
    }
    Write(request, SlotAt(counter), SlotAt(static_cast<uint16_t>(counter + 1)));
    ++counter;
    ++*posted;
  }
  if (*posted > 0) StoreRecord(memory_.record, counter);
  return status;
}

void SharedReceiveQueue::Write(const ReceiveRequest& request, uint32_t slot, uint32_t next) {
  memory_.wr_ids[slot] = request.wr_id;
  uint8_t* const at = memory_.slots + size_t{slot} * memory_.slot_bytes;
  mlx5_wqe_srq_next_seg link = {};
  link.next_wqe_index = htobe16(static_cast<uint16_t>(next));
  static_assert(sizeof(link) == kSegmentBytes);
  std::memcpy(at, &link, sizeof(link));
  WriteBuffers(request.sges, at + kSegmentBytes, at + memory_.slot_bytes);
}

// A word that is still pending belongs to a queue pair, or a completion queue, that no longer
// exists. Its completion was consumed, or is gone with it, and nobody else will free the slot.
void SharedReceiveQueue::TakeOver() {
  const FreedWord word = Freed();
  if (word.pending) StoreFreed({.freed = static_cast<uint16_t>(word.freed + 1)});
}

// Receives are outstanding in all slots that are not free. The free slots are those at the
// positions from the record on. Other processes can write all of this, so it is checked.
absl::StatusOr<bool> SharedReceiveQueue::IsQueued(uint64_t wr_id) const {
  const uint16_t posted = receives_queued();
  const auto outstanding = static_cast<uint16_t>(posted - Freed().freed);
  if (outstanding >= memory_.slot_count) {
    return absl::DataLossError(
        absl::StrCat(outstanding, " receives are outstanding in a shared queue of ",
                     memory_.slot_count, " slots: another process has written over its record"));
  }
  std::vector<bool> is_free(memory_.slot_count);
  for (uint32_t i = 0; i < memory_.slot_count - outstanding; ++i) {
    const uint32_t slot = SlotAt(static_cast<uint16_t>(posted + i));
    if (is_free[slot]) {
      return absl::DataLossError(absl::StrCat("slot ", slot,
                                              " of a shared queue is free twice: another process "
                                              "has written over the order of its slots"));
    }
    is_free[slot] = true;
  }
  for (uint32_t slot = 0; slot < memory_.slot_count; ++slot) {
    if (!is_free[slot] && std::atomic_ref(memory_.wr_ids[slot]).load() == wr_id) return true;
  }
  return false;
}

bool SharedReceiveQueue::MayComplete(uint32_t slot) const {
  return slot < memory_.slot_count && receives_queued() != Freed().freed;
}

// Overwrites an entry of `order` that nobody needs, because the receive at its position was posted.
void SharedReceiveQueue::BeginFree(uint32_t slot, uint32_t completion_queue, uint32_t consumed) {
  const uint16_t freed = Freed().freed;
  const uint32_t place = Place(freed);
  memory_.order[place] = static_cast<uint16_t>(slot ^ place);
  StoreFreed({freed, static_cast<uint16_t>(consumed), completion_queue, true});
}

void SharedReceiveQueue::Settle(uint32_t completion_queue, uint32_t consumed) {
  const FreedWord word = Freed();
  if (!word.pending || word.completion_queue != completion_queue) return;
  const uint16_t more = word.consumed == static_cast<uint16_t>(consumed) ? 1 : 0;
  StoreFreed({.freed = static_cast<uint16_t>(word.freed + more)});
}

}  // namespace baton::verbs::mlx5
