// Clients of a NIC by their queues: a correct one, and hostile ones.
#ifndef TESTS_FUZZ_HOSTILE_QUEUES_H_
#define TESTS_FUZZ_HOSTILE_QUEUES_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "lib/base/file_descriptor.h"
#include "lib/nic/control_format.h"
#include "lib/verbs/mlx5/completion_queue.h"
#include "lib/verbs/mlx5/format.h"
#include "lib/verbs/mlx5/queue_pair.h"
#include "lib/verbs/verbs.h"
#include "tests/fuzz/program.h"
#include "tests/lib/nic/harness.h"

namespace baton::fuzz {

// Numbers of a correct client that a thief knows.
struct Victim {
  uint32_t queue_pairs[2] = {};
  uint32_t completion_queue = 0;
  uint32_t key = 0;
  uint64_t address = 0;
};

// Messages of a correct client of a NIC: each arrives once, whole and in order, whatever other
// clients do.
class HonestTraffic {
 public:
  static constexpr uint64_t kDataBytes = 4096;

  // All of it outlives the traffic.
  struct Parts {
    verbs::mlx5::QueuePair* sender;  // connected to the receiver
    verbs::mlx5::QueuePair* receiver;
    verbs::mlx5::CompletionQueue* queue;  // of both
    uint8_t* data;                        // kDataBytes, which only this traffic is to change
    uint64_t address;                     // what requests call `data`
    uint32_t key;
    std::function<void()> turn;  // of the NIC
  };
  explicit HonestTraffic(Parts parts);

  // Sends a message from one queue pair to the other.
  void Send();
  // Turns the NIC until all messages have arrived, and aborts if one does not arrive, differs, or
  // if memory has changed that none was sent to.
  void Check();

 private:
  verbs::ScatterGather SgeOf(const uint8_t* at) const;
  void Take();

  const Parts parts_;
  uint64_t posted_ = 0;
  uint64_t sent_ = 0;  // completions of sends
  uint64_t received_ = 0;
};

// The memfd of hostile clients of a NIC, whose mapping in the NIC changes between its loads
// (shared_reads.h).
class HostileMemory {
 public:
  static constexpr uint64_t kPage = 4096;
  // No other file of the process is so long, so the NIC's mapping is known by its length.
  static constexpr uint64_t kBytes = 9 * kPage;
  // Nothing may change in the last page, unless an object that the NIC has granted lies there.
  static constexpr uint64_t kCanary = kBytes - kPage;

  HostileMemory();

  // Clears it, for another input.
  void Clear();
  int fd() const { return file_.fd(); }
  uint8_t* At(uint64_t offset) const { return file_.begin() + offset; }

  // Watches the NIC's loads of it from now on, where it is mapped already.
  void Watch() const;
  // The NIC has made an object of these bytes.
  void NoteObject(uint64_t offset, uint64_t bytes);
  // Aborts if the NIC has written where no object lies.
  void Check() const;

 private:
  const nic::SharedFile file_;
  bool watched_ = true;  // the last page is nobody's
};

// Where the objects lie in HostileMemory.
inline constexpr uint64_t kPageAt = 0;
inline constexpr uint64_t kQueueAt = HostileMemory::kPage;  // records, then entries
inline constexpr uint64_t kQueuePairsAt = 2 * HostileMemory::kPage;
inline constexpr uint64_t kSharedAt = 4 * HostileMemory::kPage;
inline constexpr uint64_t kDataAt = 5 * HostileMemory::kPage;
inline constexpr uint64_t kDataBytes = 2 * HostileMemory::kPage;
inline constexpr uint64_t kSecondPageAt = 7 * HostileMemory::kPage;
inline constexpr uint64_t kDataAddress = 0x7000'0000;  // what requests call it
inline constexpr uint64_t kQueuesBehindRecords = 64;
inline constexpr uint32_t kEntries = 32;
inline constexpr uint32_t kSlots = 16;
inline constexpr uint32_t kReceiveBytes = 32;
inline constexpr uint64_t kReceivesAt =
    kQueuesBehindRecords + kSlots * verbs::mlx5::kSlotBytes;  // of a queue pair
inline constexpr uint32_t kSharedSlots = 8;
inline constexpr uint32_t kSharedSlotBytes = 32;
inline constexpr uint32_t kAllAccess = 15 | 65'536;

constexpr uint64_t QueuePairAt(size_t index) {
  return kQueuePairsAt + index * HostileMemory::kPage;
}

// A hostile client writes whatever it can to the memory in which its queues lie.
// Its heir has made the objects that the numbers name.
class HostileQueues {
 protected:
  // All of them outlive it.
  HostileQueues(const Victim& victim, HostileMemory* memory, Program* program)
      : victim_(victim), memory_(memory), program_(*program) {}
  ~HostileQueues() = default;

  // The messages that make its objects, from the numbers of those that they name.
  nic::control::CompletionQueue QueueMessage() const;
  nic::control::SharedReceiveQueue SharedMessage() const;
  nic::control::QueuePair QueuePairMessage(size_t index, bool shares) const;
  nic::control::Place At(uint64_t offset) const { return {memory_file_, 0, offset}; }
  void LinkShared();

  // Requests name these. Most of them exist, and some are another client's.
  uint32_t Number();
  uint32_t Key();
  uint64_t Address();
  uint32_t Length();

  void PostSend();
  void PostReceive();
  void PostShared();
  void WriteBytes();
  void Ring(uint32_t second_word);
  void RingAnything();
  void Consume();

  struct Queues {  // a queue pair
    uint32_t number = 0;
    uint16_t sends = 0;
    uint16_t receives = 0;
  };

  const Victim& victim_;
  HostileMemory* const memory_;
  Program& program_;
  std::vector<uint32_t> numbers_;  // of all that it has made
  std::array<Queues, 2> queue_pairs_;
  uint32_t memory_file_ = 0;
  uint32_t reg_ = 0;
  uint32_t channel_ = 0;
  uint32_t key_ = 0;
  uint32_t queue_ = 0;
  uint32_t shared_ = 0;
  uint16_t shared_posted_ = 0;
  uint32_t rung_ = 0;
  uint32_t second_rung_ = 0;
  uint32_t armed_ = 0;
  uint32_t consumed_ = 0;
  FileDescriptor wake_;
};

}  // namespace baton::fuzz

#endif  // TESTS_FUZZ_HOSTILE_QUEUES_H_
