// This file has the NIC's side of doorbell pages, and the registers of a client's file that have
// them.
#ifndef LIB_NIC_REGISTERS_H_
#define LIB_NIC_REGISTERS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <random>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "lib/base/file_descriptor.h"
#include "lib/nic/event_loop.h"
#include "lib/nic/host.h"
#include "lib/nic/mapped_file.h"
#include "lib/nic/objects.h"
#include "lib/verbs/mlx5/doorbell.h"

namespace baton::nic {

// The NIC's side of one doorbell page. A driver that writes nonsense there rings in vain, and does
// no other harm: the NIC keeps its own heads in its own memory.
class Bells {
 public:
  // The page lies in `file`.
  Bells(std::shared_ptr<MappedFile> file, verbs::mlx5::DoorbellPage* page);

  // Take the oldest value of a queue. Return false if there is none.
  bool TakeSend(uint64_t* bytes);
  bool TakeArm(uint64_t* bytes);

  // Takes the bits kOverflow and kLook. After the call the NIC sees what the driver stored before
  // it set them.
  uint32_t TakeAttention();
  // Takes the numbers of queue pairs to look at, as many as `numbers` has room for, and returns how
  // many these are. After the call the NIC sees what their drivers stored before.
  size_t TakeLooks(absl::Span<uint32_t> numbers);

  // Tells the driver whether a ring has to be followed by a write to the eventfd.
  void SetSleeping(bool sleeping);
  // Returns true if there is nothing to take. After SetSleeping(true), the driver follows every
  // ring that this call does not see with a write to the eventfd.
  bool empty() const;

 private:
  static bool Take(absl::Span<uint64_t> places, std::atomic_ref<uint32_t> shared_head,
                   uint32_t* head, uint64_t* bytes);

  const std::shared_ptr<MappedFile> file_;
  verbs::mlx5::DoorbellPage* const page_;
  uint32_t send_head_ = 0;
  uint32_t arm_head_ = 0;
};

// Marks an event of a register in the NIC's epoll set. The rest of the event's data is the
// register's eventfd.
inline constexpr uint64_t kRegisterEvent = uint64_t{1} << 63;

// The doorbell registers of one client's file, by number. A ring is a hint: it schedules a queue
// pair of the same file and register, whose records say what is queued.
//
// The work of a turn for one file is bounded, so that no client keeps others waiting. A turn takes
// a limited number of rings, and continues one flush. While flushes are left, the loop calls it
// in every turn.
class Registers final : private verbs::soft::Pollable {
 public:
  // `host` outlives it.
  Registers(Owner owner, const Host* host);
  Registers(const Registers&) = delete;
  Registers& operator=(const Registers&) = delete;
  ~Registers() override { host_->loop->Forget(this); }

  // Returns the client's copy of the eventfd that wakes the NIC. Requires that `number` is not in
  // use.
  absl::StatusOr<FileDescriptor> Add(uint32_t number, Bells bells);
  // Requires that the caller has destroyed all queues that use the register.
  void Erase(uint32_t number);
  bool Contains(uint32_t number) const { return registers_.contains(number); }
  size_t size() const { return registers_.size(); }

  // The queues that a register rings, by number. The caller adds them, and removes them before it
  // destroys them.
  struct Queues {
    absl::flat_hash_set<uint32_t> queue_pairs;
    absl::flat_hash_set<uint32_t> completion_queues;
  };
  // Requires Contains(number).
  Queues& QueuesOf(uint32_t number) { return *registers_.at(number); }
  // Returns true if the register rings any queue.
  bool IsUsed(uint32_t number) const;

  // Flushes a queue pair of the file in later turns, because one turn may not suffice.
  void Flush(uint32_t qp_number) { Queue(qp_number); }
  // Moves all queue pairs of the file that complete in it to the error state, one in a turn.
  void FailUsersOf(uint32_t cq_number) {
    overrun_.push_back(cq_number);
    host_->loop->MarkDirty(this);
  }

  // Takes what was rung, at most kMaxRingsInTurn rings and one register's places more. Registers
  // take turns. Returns false if nothing was rung.
  bool Take();
  void SetSleeping(bool sleeping);
  bool empty() const;  // see Bells::empty

 private:
  struct Register : Queues {
    Register(Bells bells_of_page, FileDescriptor wake_fd, int epoll)
        : bells(std::move(bells_of_page)), wake(std::move(wake_fd)), epoll_fd(epoll) {}
    Register(const Register&) = delete;
    Register& operator=(const Register&) = delete;
    ~Register();

    Bells bells;
    const FileDescriptor wake;
    const int epoll_fd;
    bool complained = false;     // its client was reported for a wrong ring
    bool failed = false;         // its client has rung for another client's queue
    std::vector<uint64_t> held;  // rings that NicBehaviour leaves for another turn
  };

  // Return how many rings and looks there were.
  uint32_t TakeFrom(uint32_t number, Register* from);
  uint32_t TakeByBehaviour(uint32_t number, Register* from);
  void Ring(QueuePair* queue_pair);
  void Queue(uint32_t qp_number);
  void FindUsers();
  void FlushOne();
  void OnReady(uint32_t) override {}
  void OnTransmit() override;
  void OnForeign(uint32_t number, absl::string_view what);
  void Complain(uint32_t number, absl::string_view what);
  bool Draw(double probability);
  void OnRing(uint32_t number, uint64_t bytes);
  void OnArm(uint32_t number, uint64_t bytes);
  void OnLook(uint32_t number, uint32_t qp_number);
  void LookAtAll(uint32_t number);
  QueuePair* FindQueuePair(uint32_t number) const;

  const Owner owner_;
  const Host* const host_;
  const bool behaves_;  // NicBehaviour changes how rings are taken
  std::mt19937_64 random_;
  absl::flat_hash_map<uint32_t, std::unique_ptr<Register>> registers_;
  std::vector<uint32_t> order_;    // their numbers
  size_t next_ = 0;                // in `order_`: whose turn it is
  std::vector<uint32_t> overrun_;  // completion queues whose queue pairs have to fail
  // Queue pairs that are to be flushed, or fail: each in a turn of its own.
  std::deque<uint32_t> flushes_;
  absl::flat_hash_set<uint32_t> flushing_;  // what is in `flushes_`
  absl::flat_hash_set<uint32_t> failing_;   // those of these that also have to fail
};

}  // namespace baton::nic

#endif  // LIB_NIC_REGISTERS_H_
