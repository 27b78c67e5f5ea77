// Queues in mlx5's format in memory of a test, and what their device makes of them.
#ifndef TESTS_LIB_VERBS_MLX5_QUEUE_MEMORY_H_
#define TESTS_LIB_VERBS_MLX5_QUEUE_MEMORY_H_

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <new>
#include <vector>

#include "lib/base/check.h"
#include "lib/verbs/mlx5/completion_queue.h"
#include "lib/verbs/mlx5/completion_writer.h"
#include "lib/verbs/mlx5/doorbell.h"
#include "lib/verbs/mlx5/receive_queue.h"
#include "lib/verbs/mlx5/request_reader.h"
#include "lib/verbs/mlx5/send_queue.h"

namespace baton::verbs::mlx5 {

inline constexpr uint32_t kQueuePair = 0x101;
inline constexpr uint32_t kCompletionQueue = 0x202;
inline constexpr uint32_t kSendSlots = 16;
inline constexpr uint32_t kReceiveSlots = 8;
inline constexpr uint32_t kReceiveBytes = 32;
inline constexpr uint32_t kEntries = 8;

// The memory of one queue pair and its completion queue, which forked processes share.
struct QueueMemory {
  alignas(64) uint8_t sends[kSendSlots * kSlotBytes];
  alignas(64) uint8_t receives[kReceiveSlots * kReceiveBytes];
  alignas(64) uint8_t entries[kEntries * sizeof(mlx5_cqe64)];
  alignas(64) __be32 records[2];
  alignas(64) __be32 consumed;
  __be32 arm_record;
  SendNote notes[kSendSlots];
  uint64_t wr_ids[kReceiveSlots];
  QueueCursors cursors;
  uint64_t taken;
  uint32_t arming;
  uint32_t former;

  static QueueMemory* Map() {
    void* const memory = mmap(nullptr, sizeof(QueueMemory), PROT_READ | PROT_WRITE,
                              MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    BATON_CHECK(memory != MAP_FAILED);
    return new (memory) QueueMemory();
  }
  static void Unmap(QueueMemory* memory) { munmap(memory, sizeof(QueueMemory)); }

  SendQueueMemory send_queue() {
    return {sends, &records[MLX5_SND_DBR], notes, &cursors, kSendSlots};
  }
  ReceiveQueueMemory receive_queue() {
    return {receives, &records[MLX5_RCV_DBR], wr_ids, &cursors, kReceiveSlots, kReceiveBytes};
  }
  CompletionQueueMemory completion_queue() {
    return {entries,     &consumed, &taken, kEntries, sizeof(mlx5_cqe64),
            &arm_record, &arming,   &former};
  }
  CompletingQueuePair completing() {
    return {kQueuePair, 7, notes, kSendSlots, wr_ids, kReceiveSlots, &cursors};
  }
  FoundSendQueue found_sends() const { return {sends, kSendSlots, kQueuePair}; }
  FoundReceiveQueue found_receives() const { return {receives, kReceiveSlots, kReceiveBytes}; }
  FoundCompletionQueue found_completions() { return {entries, &consumed, kEntries}; }
};

// Remembers what it was rung with.
class RememberingDoorbell final : public Doorbell {
 public:
  void Ring(uint64_t bytes) override { rung.push_back(bytes); }
  void Arm(uint64_t bytes) override { armed.push_back(bytes); }
  void ReceivesPosted(uint32_t qp_number, const uint32_t&) override { posted.push_back(qp_number); }
  std::vector<uint64_t> rung;
  std::vector<uint64_t> armed;
  std::vector<uint32_t> posted;
};

}  // namespace baton::verbs::mlx5

#endif  // TESTS_LIB_VERBS_MLX5_QUEUE_MEMORY_H_
