// The objects of all clients of a NIC. Context checks and makes them.
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
  bool invalidated = false;  // a peer has invalidated its rkey
};

class QueuePair;

struct OwnedCompletionQueue {
  Owner owner = 0;
  uint32_t reg = 0;
  uint32_t users = 0;  // queue pairs, once for each direction
  std::shared_ptr<MappedFile> files[2];
  std::unique_ptr<CompletionQueue> queue;
};

struct OwnedSharedReceiveQueue {
  Owner owner = 0;
  uint32_t users = 0;  // queue pairs
  uint32_t limit = 0;  // 0: no event is asked for
  bool failed = false;
  uint32_t max_sges = 0;
  std::shared_ptr<MappedFile> files[2];
  std::unique_ptr<verbs::mlx5::SharedReceiveReader> reader;
};

struct Objects {
  // `seed`: of numbers and keys. 0: from the operating system.
  explicit Objects(uint64_t seed);
  Objects(const Objects&) = delete;
  Objects& operator=(const Objects&) = delete;
  ~Objects();  // defined where QueuePair is complete

  absl::flat_hash_map<uint32_t, Region> regions;  // by key
  absl::flat_hash_map<uint32_t, OwnedCompletionQueue> completion_queues;
  absl::flat_hash_map<uint32_t, std::unique_ptr<OwnedSharedReceiveQueue>> shared_receive_queues;
  absl::flat_hash_map<uint32_t, std::unique_ptr<QueuePair>> queue_pairs;

  std::mt19937_64 random;
  uint32_t last_number = static_cast<uint32_t>(random());
  uint64_t events = 0;  // queued so far, for all clients

  // Return a key for a region, and a number for a queue pair, completion queue or shared receive
  // queue. Neither is 0 or in use.
  uint32_t NewKey();
  uint32_t NewNumber();

  // Returns nullptr if there is none of that number.
  QueuePair* FindQueuePair(uint32_t number) const;

  // Makes the rkey unusable. Returns false if no rkey of this value may be invalidated remotely.
  bool Invalidate(const Domain& domain, uint32_t rkey);

  // Returns where [address, address + length) is. nullptr: the domain has no such key, or the
  // region does not cover the range, or does not grant `access`.
  uint8_t* Reach(const Domain& domain, uint32_t key, uint64_t address, uint64_t length,
                 uint32_t access, bool remote) const;
};

}  // namespace baton::nic

#endif  // LIB_NIC_OBJECTS_H_
