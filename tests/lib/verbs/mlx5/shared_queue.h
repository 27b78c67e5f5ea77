// A shared receive queue in memory of a test, with its queue pairs and their device.
#ifndef TESTS_LIB_VERBS_MLX5_SHARED_QUEUE_H_
#define TESTS_LIB_VERBS_MLX5_SHARED_QUEUE_H_

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "lib/base/check.h"
#include "lib/verbs/mlx5/queue_layout.h"
#include "lib/verbs/mlx5/receive_queue.h"
#include "lib/verbs/mlx5/request_reader.h"
#include "tests/lib/verbs/mlx5/queue_memory.h"

namespace baton::verbs::mlx5 {

inline constexpr SharedReceiveQueueLayout kSharedLayout = {8, 64};
inline constexpr uint32_t kSharedSlots = kSharedLayout.slot_count;
inline constexpr uint32_t kSharedQueue = 0x303;
inline constexpr size_t kSharedBuffers = 3;
// Pairs 0 and 1 complete in queue 0, and pair 2 completes in queue 1.
inline constexpr size_t kSharingPairs = 3;
inline constexpr size_t kSharingQueues = 2;
constexpr size_t QueueOf(size_t pair) { return pair / 2; }

// The memory is shared with forked processes. The device is this process's.
class SharedQueue {
 public:
  SharedQueue() : begin_(static_cast<uint8_t*>(Map())) {
    for (auto& memory : memories_) memory = {QueueMemory::Map(), &QueueMemory::Unmap};
    Renew();
  }
  SharedQueue(const SharedQueue&) = delete;
  SharedQueue& operator=(const SharedQueue&) = delete;
  ~SharedQueue() { munmap(begin_, kSharedLayout.bytes()); }

  // Makes all of it as new.
  void Renew() {
    std::fill_n(begin_, kSharedLayout.bytes(), uint8_t{0});
    for (auto& memory : memories_) *memory = {};
    for (size_t i = 0; i < kSharingQueues; ++i) writers_[i].emplace(queue(i).found_completions());
    reader_.emplace(found());
  }

  uint8_t* begin() { return begin_; }
  SharedReceiveQueueMemory memory() { return kSharedLayout.At(begin_); }
  FoundSharedReceiveQueue found() {
    return {memory().slots, memory().record, kSharedSlots, kSharedLayout.slot_bytes};
  }
  QueueMemory& pair(size_t i) { return *memories_[i]; }
  QueueMemory& queue(size_t i) { return *memories_[2 * i]; }  // beside the first of its pairs
  CompletingQueuePair completing(size_t i) {
    CompletingQueuePair pair = memories_[i]->completing();
    pair.number = kQueuePair + static_cast<uint32_t>(i);
    pair.place = static_cast<uint16_t>(i);
    pair.receive_wr_ids = nullptr;
    pair.receive_slots = 0;
    return pair;
  }

  // The device takes the next receive.
  absl::StatusOr<std::optional<SharedReceiveReader::Receive>> Take() {
    return reader_->Take(absl::MakeSpan(buffers));
  }
  // The device takes all receives that are posted. Returns their slots.
  std::vector<uint16_t> TakeAll() {
    std::vector<uint16_t> slots;
    for (auto taken = Take(); taken.ok() && taken->has_value(); taken = Take()) {
      slots.push_back((*taken)->slot);
    }
    return slots;
  }
  // The device completes a receive of a pair.
  bool Complete(size_t pair, uint16_t slot, Executed executed = {.kind = MLX5_CQE_RESP_SEND}) {
    executed.counter = slot;
    executed.qp_number = kQueuePair + static_cast<uint32_t>(pair);
    executed.srq_number = kSharedQueue;
    return writers_[QueueOf(pair)]->Write(executed);
  }
  // The device completes the send of a pair that lies in slot 0.
  bool CompleteSend(size_t pair, uint64_t wr_id) {
    memories_[pair]->notes[0] = {wr_id, 1, 0};
    Executed executed;
    executed.qp_number = kQueuePair + static_cast<uint32_t>(pair);
    return writers_[QueueOf(pair)]->Write(executed);
  }

  std::array<ScatterGather, kSharedBuffers> buffers;  // of the receive that was taken last

 private:
  static void* Map() {
    void* const memory = mmap(nullptr, kSharedLayout.bytes(), PROT_READ | PROT_WRITE,
                              MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    BATON_CHECK(memory != MAP_FAILED);
    return memory;
  }

  uint8_t* const begin_;
  using Memory = std::unique_ptr<QueueMemory, void (*)(QueueMemory*)>;
  std::array<Memory, kSharingPairs> memories_{
      {{nullptr, nullptr}, {nullptr, nullptr}, {nullptr, nullptr}}};
  std::array<std::optional<CompletionWriter>, kSharingQueues> writers_;
  std::optional<SharedReceiveReader> reader_;
};

// A driver of it.
class SharingDriver {
 public:
  SharingDriver(SharedQueue* shared, Commands* commands)
      : receives(shared->memory(), kSharedQueue, commands),
        queues{{{shared->queue(0).completion_queue(), kCompletionQueue, &doorbell_},
                {shared->queue(1).completion_queue(), kCompletionQueue + 1, &doorbell_}}} {
    for (size_t i = 0; i < kSharingPairs; ++i) {
      CompletingQueuePair pair = shared->completing(i);
      pair.shared = &receives;
      queues[QueueOf(i)].Add(pair);
    }
  }
  SharingDriver(const SharingDriver&) = delete;
  SharingDriver& operator=(const SharingDriver&) = delete;

  void TakeOver() {
    for (CompletionQueue& queue : queues) queue.TakeOver();
    receives.TakeOver();
  }
  // Posts receives of the wr_ids from `first` on, each with one buffer that has the wr_id's
  // address. Returns how many were taken.
  size_t Post(uint64_t first, size_t count) {
    std::vector<ScatterGather> sges;
    for (size_t i = 0; i < count; ++i) sges.push_back({first + i, 64, 7});
    std::vector<ReceiveRequest> requests;
    for (size_t i = 0; i < count; ++i) requests.push_back({first + i, {&sges[i], 1}});
    size_t posted = 0;
    (void)receives.PostReceive(requests, &posted);
    return posted;
  }
  // Polls what has completed. Returns the wr_ids.
  std::vector<uint64_t> Poll(size_t queue) {
    std::vector<uint64_t> told;
    Completion completion;
    while (queues[queue].Take({&completion, 1}).value_or(0) == 1) told.push_back(completion.wr_id);
    return told;
  }

  SharedReceiveQueue receives;
  std::array<CompletionQueue, kSharingQueues> queues;

 private:
  RememberingDoorbell doorbell_;
};

}  // namespace baton::verbs::mlx5

#endif  // TESTS_LIB_VERBS_MLX5_SHARED_QUEUE_H_
