#ifndef LIB_VERBS_MLX5_COMPLETION_QUEUE_H_
#define LIB_VERBS_MLX5_COMPLETION_QUEUE_H_

#include <cstdint>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "lib/verbs/mlx5/doorbell.h"
#include "lib/verbs/mlx5/format.h"
#include "lib/verbs/verbs.h"

namespace baton::verbs::mlx5 {

class SharedReceiveQueue;

// Where a completion queue lies. The device writes the entries and reads the records. All of the
// memory outlives the driver.
struct CompletionQueueMemory {
  const uint8_t* entries = nullptr;  // `entry_count` times `entry_bytes`
  __be32* record = nullptr;          // completions consumed so far, 24 bits
  uint64_t* taken = nullptr;         // the driver's: the completion taken last, see TakenWord
  uint32_t entry_count = 0;          // a power of two, at most kMaxEntries
  uint32_t entry_bytes = 64;         // 64, or 128, of which the last 64 are the entry
  __be32* arm_record = nullptr;      // how it was armed last: see ArmValue
  uint32_t* arming = nullptr;        // the driver's: how it arms the queue next, see kArmed
  uint32_t* former = nullptr;        // the driver's: 1 after NoteReset, 0 when Take has passed it
};

// The value that arms a completion queue. It is the arm record and the first half of the doorbell:
//   bits  0-23  completions consumed; the device makes an event for the first one behind them
//        28-29  sequence: counts the events modulo 4
constexpr uint32_t kSequenceShift = 28;
constexpr uint32_t kSequenceMask = 3;
constexpr uint32_t ArmValue(uint32_t sequence, uint32_t consumed) {
  return sequence << kSequenceShift | MLX5_CQ_DB_REQ_NOT | consumed;
}

// CompletionQueueMemory::arming has the sequence of the next arm, and this bit above it. The driver
// sets the bit before it records that arm. The device makes the event of a recorded arm as soon as
// there is a completion, so the driver then takes the next sequence.
constexpr uint32_t kArmed = 4;

// A queue pair that completes in a completion queue. The memory that it points to outlives the
// driver.
struct CompletingQueuePair {
  uint32_t number = 0;
  uint16_t place = 0;  // its index among those that complete there, see TakenWord
  const SendNote* send_notes = nullptr;
  uint32_t send_slots = 0;
  const uint64_t* receive_wr_ids = nullptr;
  uint32_t receive_slots = 0;
  QueueCursors* cursors = nullptr;
  // The shared queue, if the queue pair has no receives of its own (receive_slots is 0). It is an
  // object of this process and outlives the queue pair.
  SharedReceiveQueue* shared = nullptr;
  bool sends_here = true;  // its sends complete in this queue
  bool receives_here = true;
};

// The word `taken`. A driver whose predecessor was killed after it had consumed a completion brings
// the cursors up to date with it:
//   bits  0-23  completions consumed, this one among them
//        24-39  place of its queue pair
//        40-46  the queue pair's `use`, its low bits
//        47     1: a receive
//        48-63  the new `sent` or `received`
// Another word, FreedWord, frees the slot of a shared receive, because several completion queues
// free slots of one shared queue.
struct TakenWord {
  uint32_t consumed = 0;
  uint16_t place = 0;
  uint8_t use = 0;
  bool receive = false;
  uint16_t cursor = 0;
};
constexpr uint8_t kUseMask = 0x7f;
constexpr uint64_t Pack(const TakenWord& word) {
  return word.consumed | uint64_t{word.place} << 24 | uint64_t{word.use} << 40 |
         uint64_t{word.receive} << 47 | uint64_t{word.cursor} << 48;
}
constexpr TakenWord Unpack(uint64_t word) {
  return {static_cast<uint32_t>(word & kConsumedMask), static_cast<uint16_t>(word >> 24),
          static_cast<uint8_t>(word >> 40 & kUseMask), (word >> 47 & 1) != 0,
          static_cast<uint16_t>(word >> 48)};
}

// A successful completion, not of a READ or atomic.
struct PlainCompletion {
  // Bits 16-23 are the verbs::CompletionOpcode, bit 24 is has_immediate, bit 25 has_invalidate, and
  // bit 0 is set.
  static constexpr uint32_t Pack(CompletionOpcode opcode, bool immediate, bool invalidate) {
    return 1 | uint32_t{static_cast<uint8_t>(opcode)} << 16 | uint32_t{immediate} << 24 |
           uint32_t{invalidate} << 25;
  }
  static constexpr uint32_t kOpcodeAndFlags = 0xffff0000;

  uint64_t wr_id = 0;
  uint32_t what = 0;
  uint32_t byte_len = 0;
  uint32_t immediate = 0;  // of a receive
  uint32_t qp_number = 0;
};

// Polls a completion queue. One store consumes a completion, after the caller has it. The successor
// of a killed driver calls TakeOver. It then gets each completion once, and those again that its
// predecessor had and did not consume: one with Take, with TakeEach and kTogether a run (verbs.h).
//
// Thread-compatible; one process at a time.
class CompletionQueue {
 public:
  // `number` is the device's. `doorbell` outlives the queue.
  CompletionQueue(const CompletionQueueMemory& memory, uint32_t number, Doorbell* doorbell)
      : memory_(memory), number_(number), doorbell_(doorbell) {}
  CompletionQueue(const CompletionQueue&) = delete;
  CompletionQueue& operator=(const CompletionQueue&) = delete;

  void Add(const CompletingQueuePair& queue_pair);
  // REQUIRES: the queue contains none of its completions any more.
  void Remove(uint32_t qp_number);

  // A driver calls this first, after it has added all queue pairs. It stores the cursor that a
  // killed predecessor had not stored yet, and settles whether the predecessor had freed a slot of
  // a shared queue.
  void TakeOver();

  // Does what verbs::CompletionQueue::Take does. It writes the wr_id of a completion last, before
  // it consumes the completion. kDataLoss: an entry makes no sense, so nothing is known about those
  // behind it.
  absl::StatusOr<int> Take(absl::Span<Completion> taken);

  // Gives the sink up to `most` completions, oldest first. Each is consumed after the sink has
  // it, so the successor of a killed driver may get it again. Returns how many were consumed, or
  // kNonsense if the first entry makes no sense. WhyUnknown then says why. Defined in polling.h.
  //
  // A sink has these:
  //   static constexpr bool kTogether: plain completions of one queue that follow each other may be
  //     consumed together. The successor of a killed driver may then get all of them again.
  //   Sends(wr_id), Receives(wr_id): return a run of plain completions, which begins with this
  //     wr_id. Its bool Keep(const PlainCompletion&) returns true if the run keeps the completion.
  //     None of these may touch queue pairs or this queue. A completion that a run does not keep
  //     begins the next run. If that run does not keep it either, the sink's Keep gets it. A run
  //     ends before the next begins.
  //   bool Keep(const Completion&): may post, and may destroy queue pairs. A completion that it
  //     returns false for stays in the queue, and TakeEach returns.
  static constexpr int kNonsense = -1;
  template <typename Sink>
  int TakeEach(int most, Sink* sink);
  // Requires that TakeEach has just returned kNonsense. Returns kDataLoss, which describes the
  // entry.
  absl::Status WhyUnknown();

  // The process that has reset a queue pair calls this. Polls then pass over completions of its
  // former use that are left here, because their slots will belong to the next use. Another process
  // may be in Take meanwhile, if it takes completions of other queue pairs only (soft_nic.md,
  // "Open"). kUnavailable: that process writes nonsense to the queue's record.
  absl::Status NoteReset(uint32_t qp_number);

  // See verbs::CompletionQueue::RequestNotification. The successor of a killed driver calls it
  // again.
  void RequestNotification();

 private:
  class EntryWalk;
  struct Known {
    CompletingQueuePair queue_pair;
    __be32 number = 0;   // as entries have it
    uint64_t taken = 0;  // its part of `taken`
  };
  // The bits of mlx5_cqe64::sop_drop_qpn that hold the number.
  static constexpr __be32 kNumberOfEntry = ~__be32{0xff};

  // An entry's meaning. It stays valid when the queue pair is destroyed.
  struct Found {
    QueueCursors* cursors = nullptr;
    uint64_t wr_id = 0;
    uint64_t taken = 0;
    uint16_t cursor = 0;  // the new `sent` or `received`
    bool receive = false;
    SharedReceiveQueue* shared = nullptr;  // the receive's queue, and `slot` in it
    uint32_t slot = 0;
  };
  static constexpr int kNotKept = -2;
  enum class Look : uint8_t {
    kFound,
    kFormer,    // of a use before a reset: only `found` is set
    kNonsense,  // nothing is set
  };

  const mlx5_cqe64& Entry(uint32_t index) const;
  bool IsThere(const mlx5_cqe64& entry, uint32_t index) const;
  bool HasEntry(uint32_t index) const { return IsThere(Entry(index), index); }
  const Known* FindQueuePair(uint32_t number);
  static Found FindSend(const mlx5_cqe64& entry, const CompletingQueuePair& queue_pair,
                        uint64_t taken);
  static Found FindReceive(const CompletingQueuePair& queue_pair, uint16_t received,
                           uint64_t taken);
  // Does what FindSend and FindReceive do, for any entry. Returns false if the entry makes no
  // sense.
  static bool Find(const mlx5_cqe64& entry, const Known& known, Found* found);
  Look LookAt(const mlx5_cqe64& entry, uint32_t index, Found* found, Completion* completion);
  // Returns the new number of consumed completions.
  uint32_t Consume(const Found& found, uint32_t consumed, uint32_t count);
  template <typename Sink>
  int TakeSends(const Known& known, int most, EntryWalk* walk, uint32_t* consumed, Sink* sink);
  template <typename Sink>
  int TakeReceives(const Known& known, int most, EntryWalk* walk, uint32_t* consumed, Sink* sink);
  template <typename Sink>
  int TakeOther(const mlx5_cqe64& entry, uint32_t* consumed, Sink* sink);
  void NoteEvent();
  static void BringUpToDate(const TakenWord& taken, QueueCursors* cursors);
  void EndUse(const CompletingQueuePair& queue_pair);
  absl::StatusOr<uint32_t> FindEnd() const;
  bool MayHaveFormer() const;
  bool IsAhead(uint32_t begin, uint32_t index) const;
  bool IsFormer(const CompletingQueuePair& queue_pair, bool receive, uint32_t index) const;
  uint32_t PassOver(const Found& found, uint32_t index);
  void ForgetFormer(uint32_t consumed);

  const CompletionQueueMemory memory_;
  const uint32_t number_;
  Doorbell* const doorbell_;
  absl::flat_hash_map<uint32_t, Known> queue_pairs_;  // by number
  // The entry of queue_pairs_ that was found last; null: none was since the map changed.
  const Known* last_ = nullptr;
};

}  // namespace baton::verbs::mlx5

#endif  // LIB_VERBS_MLX5_COMPLETION_QUEUE_H_
