// The objects of all clients of a NIC. Context checks and makes them, and Loopback executes.
#ifndef LIB_NIC_OBJECTS_H_
#define LIB_NIC_OBJECTS_H_

#include <cstdint>
#include <memory>
#include <random>

#include "absl/container/flat_hash_map.h"
#include "lib/nic/completion_queue.h"
#include "lib/nic/mapped_file.h"
#include "lib/verbs/mlx5/format.h"
#include "lib/verbs/mlx5/request_reader.h"
#include "lib/verbs/verbs.h"

namespace baton::nic {

// Names the file that an object belongs to. A NIC uses each value once.
using Owner = uint64_t;

// A protection domain.
struct Domain {
  Owner owner = 0;
  uint32_t number = 0;
  bool operator==(const Domain&) const = default;
};

struct Region {
  Domain domain;
  std::shared_ptr<MappedFile> file;
  uint8_t* begin = nullptr;
  uint64_t address = 0;  // what clients call `begin`
  uint64_t length = 0;
  uint32_t access = 0;
};

struct QueuePair {
  // Fixed when it is made.
  Domain domain;
  uint32_t number = 0;
  uint32_t reg = 0;  // the register of its owner that it is rung by
  std::shared_ptr<MappedFile> files[3];
  const uint8_t* sends = nullptr;
  const uint8_t* receives = nullptr;
  const __be32* records = nullptr;
  uint32_t* failed = nullptr;
  uint32_t send_slots = 0;
  uint32_t receive_slots = 0;
  uint32_t receive_bytes = 0;
  uint32_t send_queue_number = 0;
  uint32_t receive_queue_number = 0;
  CompletionQueue* send_queue = nullptr;
  CompletionQueue* receive_queue = nullptr;

  // Set when it is connected.
  verbs::QueuePairState state = verbs::QueuePairState::kInit;
  uint32_t peer = 0;
  uint32_t rnr_retry_count = 0;
  uint32_t rnr_timer_us = 0;

  // Where the execution is.
  uint16_t next_send = 0;     // where the next request begins
  uint16_t next_receive = 0;  // receives that were taken
  uint32_t rnr_tries = 0;     // of the next request
  uint64_t retry_at_ns = 0;   // not 0: it waits for a receive of its peer
  bool scheduled = false;

  uint16_t sends_queued() const {
    return static_cast<uint16_t>(verbs::mlx5::LoadRecord(&records[MLX5_SND_DBR]));
  }
  uint16_t receives_queued() const {
    return static_cast<uint16_t>(verbs::mlx5::LoadRecord(&records[MLX5_RCV_DBR]));
  }
  verbs::mlx5::FoundSendQueue send_memory() const { return {sends, send_slots, number}; }
};

struct OwnedCompletionQueue {
  Owner owner = 0;
  uint32_t reg = 0;
  uint32_t users = 0;  // queue pairs, once for each direction
  std::shared_ptr<MappedFile> files[2];
  std::unique_ptr<CompletionQueue> queue;
};

struct Objects {
  absl::flat_hash_map<uint32_t, Region> regions;  // by key
  absl::flat_hash_map<uint32_t, OwnedCompletionQueue> completion_queues;
  absl::flat_hash_map<uint32_t, std::unique_ptr<QueuePair>> queue_pairs;

  std::mt19937_64 random{std::random_device()()};
  uint32_t last_number = 0;

  // Return a key for a region, and a number for a queue pair or completion queue. Neither is 0 or
  // in use.
  uint32_t NewKey();
  uint32_t NewNumber();

  // Returns nullptr if there is none of that number.
  QueuePair* FindQueuePair(uint32_t number) const;

  // Returns where [address, address + length) is. nullptr: the domain has no such key, or the
  // region does not cover the range, or does not grant `access`.
  uint8_t* Reach(const Domain& domain, uint32_t key, uint64_t address, uint64_t length,
                 uint32_t access) const;
};

}  // namespace baton::nic

#endif  // LIB_NIC_OBJECTS_H_
