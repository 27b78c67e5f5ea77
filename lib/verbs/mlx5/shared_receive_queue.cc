#include "lib/verbs/mlx5/shared_receive_queue.h"

#include <atomic>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/verbs/mlx5/receive_queue.h"

namespace baton::verbs::mlx5 {

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
