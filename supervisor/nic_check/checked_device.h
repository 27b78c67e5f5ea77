#ifndef SUPERVISOR_NIC_CHECK_CHECKED_DEVICE_H_
#define SUPERVISOR_NIC_CHECK_CHECKED_DEVICE_H_

#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/verbs/mlx5/completion_queue.h"
#include "lib/verbs/mlx5/doorbell.h"
#include "lib/verbs/mlx5/library_objects.h"
#include "lib/verbs/mlx5/receive_queue.h"
#include "lib/verbs/mlx5/send_queue.h"
#include "lib/verbs/verbs.h"
#include "supervisor/nic_check/nic_check.h"

namespace baton::nic_check {

struct LoopbackAddress {
  uint8_t port = 1;
  uint8_t gid_index = 0;
  bool global = false;  // by gid, else by lid
  ibv_gid gid = {};
  uint16_t lid = 0;
  ibv_mtu mtu = IBV_MTU_1024;
};

// A queue pair that libmlx5 made, as Baton's driver has it, in one process.
class CheckedQueues {
 public:
  // `made` must outlive it.
  explicit CheckedQueues(const verbs::mlx5::LibraryQueuePair& made)
      : bell_(made.send_register(), made.arm_register()),
        sends_(made.sends(), made.number(), made.limits(), &bell_),
        receives_(made.receives()),
        completions_(made.completion_queue(), made.completion_queue_number(), &bell_) {
    completions_.Add(made.completing());
  }

  // Called by a driver that follows another one.
  void TakeOver() {
    completions_.TakeOver();
    sends_.RingAgain();
  }

  verbs::mlx5::SendQueue& sends() { return sends_; }
  verbs::mlx5::ReceiveQueue& receives() { return receives_; }
  verbs::mlx5::CompletionQueue& completions() { return completions_; }

 private:
  verbs::mlx5::RegisterDoorbell bell_;
  verbs::mlx5::SendQueue sends_;
  verbs::mlx5::ReceiveQueue receives_;
  verbs::mlx5::CompletionQueue completions_;
};

// Rings nothing.
class SilentDoorbell final : public verbs::mlx5::Doorbell {
 public:
  void Ring(uint64_t) override {}
  void Arm(uint64_t) override {}
  void ReceivesPosted(uint32_t, const uint32_t&) override {}
};

// Two queue pairs that are connected to each other.
struct Ends {
  std::unique_ptr<verbs::mlx5::LibraryQueuePair> first, second;
};

inline constexpr verbs::mlx5::SendQueueLimits kLimits = {3, 64};
inline constexpr uint32_t kRequests = 16;
inline constexpr uint32_t kEntries = 63;

inline uint64_t Load(const uint64_t* word) {
  return std::atomic_ref(*const_cast<uint64_t*>(word)).load(std::memory_order_acquire);
}

// A device, with words that fetch-and-adds increment, which show that each was executed once.
class CheckedDevice {
 public:
  static absl::StatusOr<std::unique_ptr<CheckedDevice>> Make(ibv_context* context,
                                                             const Options& options,
                                                             SharedMemory* shared);
  CheckedDevice(const CheckedDevice&) = delete;
  CheckedDevice& operator=(const CheckedDevice&) = delete;
  ~CheckedDevice();

  ibv_context* context() const { return context_; }
  const Options& options() const { return options_; }
  SharedMemory& shared() { return *shared_; }

  // Queue pairs of the domain share a register that no other domain uses.
  absl::StatusOr<std::unique_ptr<verbs::mlx5::LibraryDomain>> MakeDomain();
  absl::StatusOr<Ends> Connect(const verbs::mlx5::LibraryDomain& domain,
                               ibv_comp_channel* channel = nullptr);
  absl::Status Connect(const Ends& ends);
  const verbs::mlx5::LibraryDomain& domain() const { return *domain_; }

  // A word that no other check uses.
  uint64_t* NewWord() { return &words_[next_word_++]; }
  uint8_t* bytes() const { return reinterpret_cast<uint8_t*>(words_); }
  verbs::ScatterGather SgeOf(const void* begin, uint32_t length) const {
    return {reinterpret_cast<uintptr_t>(begin), length, region_->lkey};
  }

  // Returns a request that adds 1 to `word`. Nothing reads the value that it returns.
  verbs::SendRequest AddOne(uint64_t wr_id, const uint64_t* word) const;
  absl::Status Post(CheckedQueues* queues, const verbs::SendRequest& request) const;
  // Returns the next completion. kDeadlineExceeded: none came within the patience.
  absl::StatusOr<verbs::Completion> Next(CheckedQueues* queues) const;
  // Executes one such request, and checks that it was executed once.
  absl::Status AddOnceMore(CheckedQueues* queues, uint64_t wr_id, const uint64_t* word) const;
  bool Eventually(const std::function<bool()>& done) const;

 private:
  CheckedDevice(ibv_context* context, const Options& options, SharedMemory* shared)
      : context_(context), options_(options), shared_(shared) {}

  ibv_context* const context_;
  const Options options_;
  SharedMemory* const shared_;
  LoopbackAddress address_;
  std::unique_ptr<verbs::mlx5::LibraryDomain> domain_;
  ibv_mr* region_ = nullptr;
  uint64_t* words_ = nullptr;
  uint32_t next_word_ = 1;  // the first one receives former values
  verbs::ScatterGather before_ = {};
};

// The record that a killed driver leaves to its heir in shared memory, beside its queues.
struct Trail {
  std::atomic<bool> begun;
  std::atomic<bool> is_broken;
  uint64_t noted;  // completions that a driver has noted
};

// Forks one driver after the other, and kills each at a random instant after it has begun. `drive`
// gets a random number. Ends early if the trail is broken, or if nothing completes any more,
// because a device that has stopped stays so for each driver.
absl::Status KillDrivers(CheckedDevice* device, Trail* trail,
                         const std::function<absl::Status(uint64_t random)>& drive);

// Lets this machine's libmlx5 post requests, and Baton's driver the same ones into a copy of the
// queue. An error names the first one that differs. (tests/lib/nic/oracle has all kinds, at all
// places.)
absl::StatusOr<std::string> RequestsAreLibrarys(CheckedDevice* device);

// Which of its predecessor's requests a driver believes to be queued. Only the first value is
// right. The others exist for tests of the check.
enum class Belief : uint8_t { kLastQueued, kNothing, kEverything };

// Drivers send messages of every kind from one queue pair to another, and are killed at random
// instants, or beside a post: SENDs with and without an immediate, WRITEs, READs and
// fetch-and-adds, inline and of several buffers, of one slot and of two, one at a time and in
// chains, over and over around both queues. An heir asks what its predecessor had queued. Each
// message has to arrive once, in order and whole.
absl::StatusOr<std::string> KilledMessengersAreFollowedExactly(CheckedDevice* device,
                                                               Belief belief);

}  // namespace baton::nic_check

#endif  // SUPERVISOR_NIC_CHECK_CHECKED_DEVICE_H_
