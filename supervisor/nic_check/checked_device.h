#ifndef SUPERVISOR_NIC_CHECK_CHECKED_DEVICE_H_
#define SUPERVISOR_NIC_CHECK_CHECKED_DEVICE_H_

#include <infiniband/verbs.h>

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/verbs/mlx5/library_objects.h"
#include "lib/verbs/verbs.h"
#include "supervisor/nic_check/driver.h"
#include "supervisor/nic_check/loopback.h"
#include "supervisor/nic_check/nic_check.h"
#include "supervisor/nic_check/shared_memory.h"

namespace baton::nic_check {

// Two queue pairs that are connected to each other.
struct Ends {
  std::unique_ptr<verbs::mlx5::LibraryQueuePair> first, second;
};

inline constexpr verbs::mlx5::SendQueueLimits kLimits = {3, 64};
inline constexpr uint32_t kRequests = 16;
inline constexpr uint32_t kEntries = 63;

// A device, with words that fetch-and-adds count in: each can be seen to have been executed once.
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

  // Its queue pairs have a register that no other domain has.
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
  uint32_t rkey() const { return region_->rkey; }

  // Adds 1 to `word`. The value before is of no interest.
  verbs::SendRequest AddOne(uint64_t wr_id, const uint64_t* word) const;
  absl::Status Post(Driver* driver, const verbs::SendRequest& request) const;
  // Returns the next completion. kDeadlineExceeded: none came within the patience.
  absl::StatusOr<verbs::Completion> Next(Driver* driver) const;
  // Does one of them and looks that it was executed once.
  absl::Status AddOnceMore(Driver* driver, uint64_t wr_id, const uint64_t* word) const;
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
  uint32_t next_word_ = 1;  // the first one takes what was there before
  verbs::ScatterGather before_ = {};
};

}  // namespace baton::nic_check

#endif  // SUPERVISOR_NIC_CHECK_CHECKED_DEVICE_H_
