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

// Where a completion queue lies. The device writes the entries and reads the record; all of it
// outlives the driver.
struct CompletionQueueMemory {
  const uint8_t* entries = nullptr;  // `entry_count` times `entry_bytes`
  __be32* record = nullptr;          // completions consumed so far, 24 bits
  uint64_t* taken = nullptr;         // ours: the completion that was taken last, see TakenWord
  uint32_t entry_count = 0;          // a power of two, at most kMaxEntries
  uint32_t entry_bytes = 64;         // 64, or 128, of which the last 64 are the entry
  __be32* arm_record = nullptr;      // how it was armed last: see ArmValue
  uint32_t* arming = nullptr;        // ours: how it is to be armed next, see kArmed
  uint32_t* former = nullptr;        // ours: 1 after NoteReset, 0 when Take has passed all of it
};

// The value that arms a completion queue. It is the arm record and the first half of the doorbell:
//   bits  0-23  completions consumed: the event is that of the first one behind these
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

// A queue pair that completes in it. What this points to outlives the driver.
struct CompletingQueuePair {
  uint32_t number = 0;
  uint16_t place = 0;  // of all that complete there: what `taken` calls it
  const SendNote* send_notes = nullptr;
  uint32_t send_slots = 0;
  const uint64_t* receive_wr_ids = nullptr;
  uint32_t receive_slots = 0;
  QueueCursors* cursors = nullptr;
  // The queue that it takes its receives from if it has none of its own (receive_slots is 0). This
  // process made it, and it outlives the queue pair.
  SharedReceiveQueue* shared = nullptr;
  bool sends_here = true;  // they complete in this queue, and not in another
  bool receives_here = true;
};

// The word `taken`. By it a driver brings the cursors up to date if its predecessor was killed
// after it had consumed a completion:
//   bits  0-23  completions consumed, this one among them
//        24-39  place of its queue pair
//        40-46  the queue pair's `use`, its low bits
//        47     1: a receive
//        48-63  the new `sent` or `received`
// The slot of a shared receive is freed by another word, FreedWord, because several completion
// queues free slots of one shared queue.
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

// Polls a completion queue. Each completion is consumed by one store, after its caller has it: a
// driver that follows one that was killed calls Resume, and gets each once, or, as verbs.h has it,
// the last one a second time where its predecessor had not consumed it.
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
  // Its completions are gone from the queue.
  void Remove(uint32_t qp_number);

  // The first call of a driver, when all queue pairs were added: brings a cursor up to date that
  // its predecessor was killed before, and settles whether it had freed a slot of a shared queue.
  void Resume();

  // Does what verbs::CompletionQueue::Take does: the wr_id of each is written last, and before it
  // is consumed. kDataLoss: an entry makes no sense, by which nothing is known of any behind it.
  absl::StatusOr<int> Take(absl::Span<Completion> taken);

  // Gives the keeper up to `most` completions, oldest first. Each is consumed after the keeper has
  // it, so a driver that follows one that was killed gets it again. Returns how many were consumed,
  // or kNonsense if the first entry makes no sense: WhyUnknown says why. Defined in polling.h.
  //
  // A keeper has these:
  //   static constexpr bool kTogether: plain completions of one queue that follow each other may be
  //     consumed together, so that a driver that follows gets all of them again.
  //   Sends(wr_id), Receives(wr_id): return a run of plain completions, of which the first has this
  //     wr_id. Its bool Keep(const PlainCompletion&) returns whether the run has the completion
  //     now. They do nothing to queue pairs and this queue. One that is not kept begins the next
  //     run, and if that does not keep it either, it is given to Keep. A run ends before the next
  //     begins.
  //   bool Keep(const Completion&): may post, and may destroy queue pairs. A completion that it
  //     returns false for stays in the queue, and TakeEach returns.
  static constexpr int kNonsense = -1;
  template <typename Keeper>
  int TakeEach(int most, Keeper* keeper);
  // Requires that TakeEach has just returned kNonsense. kDataLoss says what the entry is.
  absl::Status WhyUnknown();

  // Called by the process that has reset a queue pair: completions of its former use that are left
  // here are passed over, because their slots will be of the next use. Another process may be at
  // Take meanwhile, if what it takes is of other queue pairs (soft_nic.md, "Open"). kUnavailable:
  // that process writes nonsense to the queue's record.
  absl::Status NoteReset(uint32_t qp_number);

  // See verbs::CompletionQueue::RequestNotification. A driver that follows one that was killed
  // calls it again.
  void RequestNotification();

 private:
  class EntryWalk;
  struct Known {
    CompletingQueuePair queue_pair;
    __be32 number = 0;   // as entries have it
    uint64_t taken = 0;  // its part of `taken`
  };
  // The number's part of mlx5_cqe64::sop_drop_qpn.
  static constexpr __be32 kNumberOfEntry = ~__be32{0xff};

  // An entry's meaning. It stays valid when the queue pair is destroyed.
  struct Found {
    QueueCursors* cursors = nullptr;
    uint64_t wr_id = 0;
    uint64_t taken = 0;
    uint16_t cursor = 0;  // the new `sent` or `received`
    bool receive = false;
    SharedReceiveQueue* shared = nullptr;  // where it comes from, and its slot there
    uint32_t slot = 0;
  };
  static constexpr int kNotKept = -2;
  enum class Look : uint8_t {
    kFound,
    kFormer,    // a reset has left it: only `found` is set
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
  // FindSend or FindReceive of any entry. Returns false if it makes no sense.
  static bool Find(const mlx5_cqe64& entry, const Known& known, Found* found);
  Look LookAt(const mlx5_cqe64& entry, uint32_t index, Found* found, Completion* completion);
  // Returns how many are consumed then.
  uint32_t Consume(const Found& found, uint32_t consumed, uint32_t count);
  template <typename Keeper>
  int TakeSends(const Known& known, int most, EntryWalk* walk, uint32_t* consumed, Keeper* keeper);
  template <typename Keeper>
  int TakeReceives(const Known& known, int most, EntryWalk* walk, uint32_t* consumed,
                   Keeper* keeper);
  template <typename Keeper>
  int TakeOther(const mlx5_cqe64& entry, uint32_t* consumed, Keeper* keeper);
  void NoteEvent();
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
  // The one of these that was found last; null: none was since they changed.
  const Known* last_ = nullptr;
};

}  // namespace baton::verbs::mlx5

#endif  // LIB_VERBS_MLX5_COMPLETION_QUEUE_H_
