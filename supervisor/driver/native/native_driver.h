// A native worker's driver, in a process that `baton-driver` has forked. The worker library calls
// it through lib/native/host.h. It operates the queues of the shards that the worker owns. It makes
// the worker the owner of shards that it inherits from dead owners and from those that gave them
// up, or that `baton-driver` gives it.
//
// Thread-compatible: the thread that the worker library uses. One thread of its own waits for the
// deaths of owners whose heir the worker is.
#ifndef SUPERVISOR_DRIVER_NATIVE_NATIVE_DRIVER_H_
#define SUPERVISOR_DRIVER_NATIVE_NATIVE_DRIVER_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "lib/arena/arena.h"
#include "lib/base/file_descriptor.h"
#include "lib/base/fork_mark.h"
#include "lib/driver/device_objects.h"
#include "lib/driver/ownership.h"
#include "lib/driver/queue_driver.h"
#include "lib/native/host.h"
#include "lib/native/native_device.h"
#include "lib/native/queue_pair_pool.h"
#include "supervisor/driver/engine/death_watcher.h"
#include "supervisor/driver/engine/shard_change.h"
#include "supervisor/driver/engine/shard_reports.h"
#include "supervisor/driver/native/claims.h"

namespace baton::driver_process {

// The objects and settings that a native worker's process inherits from `baton-driver`.
struct NativeInheritance {
  arena::Arena* arena = nullptr;
  verbs::Device* device = nullptr;
  native::QueuePairPool* pool = nullptr;
  std::shared_ptr<driver::DeviceObjects> objects;
  uint32_t slot = 0;       // of the worker
  uint64_t worker_id = 0;  // of the worker
  int session = -1;        // the worker's end of its session with the keeper
  int driver_wake = -1;    // eventfd: there are orders, or a shard has changed hands
  std::vector<int> wakes;  // eventfds, by worker slot
  int news = -1;           // packets for the keeper's event log; see NewsLine
  int lifeline = -1;       // reading end (lifeline.h); in the worker, its own one
  int presence = -1;       // of lifeline.h
  int realtime_priority = 0;
  bool outside_effects = false;  // shards are taken only from owners that gave them up
  uint32_t poison_deaths = 3;    // on one completion, before its connection is failed
  bool watch_deaths = true;      // false: the driver's creator calls LookForDeaths()
};

// Kind of the news that a worker's process cannot run its object.
inline constexpr std::string_view kWorkerFailed = "native_worker_failed";

class NativeDriver final : private driver::DriverObserver {
 public:
  static absl::StatusOr<std::unique_ptr<NativeDriver>> Create(NativeInheritance inheritance);
  ~NativeDriver() override;

  // In a process that the worker has forked, the host has no session, and all its functions fail.
  BatonNativeHost* host();

  // Has the next Attend() look whether owners whose heir this worker is are dead. Any thread.
  void LookForDeaths() { died_.store(~uint64_t{0}); }

 private:
  explicit NativeDriver(NativeInheritance inheritance);

  // The host's functions.
  absl::Status Attend();
  absl::Status Adopt(uint32_t shard, uint64_t epoch);
  absl::Status Apply(uint32_t shard);
  absl::Status Poll(uint32_t shard);
  absl::Status RequestNotification(uint32_t shard);
  absl::Status Release(uint32_t shard, uint64_t epoch);
  int Report(const absl::Status& status) { return status.ok() ? 0 : Fail(status); }
  int Fail(const absl::Status& status);
  int RefuseFork();
  // Adapts a method to the function pointers of BatonNativeHost.
  template <auto kFunction, typename... Arguments>
  static int Call(void* self, Arguments... arguments) {
    auto* const driver = static_cast<NativeDriver*>(self);
    if (!driver->process_.IsOurs()) return driver->RefuseFork();
    return driver->Report((driver->*kFunction)(arguments...));
  }

  void ReadWake();
  bool IsOurs(uint32_t shard) const { return ownerships_[shard].word() == adopted_[shard]; }
  bool LostAny() const;
  void HandleNotices(uint32_t most);
  absl::Status PollBeforeSleep(uint32_t shard);
  absl::Status TakeClaimed();
  absl::Status Take(const std::vector<Claimed>& all);
  // Ends the epoch of the former owner of a shard that is claimed and adopted here.
  void EndFormer(const driver::Ownership& shard, absl::Span<const uint32_t> connections);
  void LeaveShard(uint32_t shard);
  void WatchOwners();
  void OnFirstCommit(uint32_t shard);
  void WakeDriver() const;
  void Tell(std::string_view kind, int shard, int connection, std::string_view message) const;

  void OnConnectionState(uint32_t connection, std::string_view what) override;
  void OnRefusedConnection(std::string_view why) override;
  void OnSlotFree(uint32_t connection) override;
  void OnSettled(uint32_t connection, bool receive, uint64_t end) override;

  arena::Arena& arena() const { return *inheritance_.arena; }

  NativeInheritance inheritance_;
  ForkMark process_;  // in which this was created
  BatonNativeHost host_ = {};
  FileDescriptor epoll_;  // what the worker's thread sleeps on
  std::vector<driver::Ownership> ownerships_;
  // By shard: the ownership word with which this worker took it. 0: it is not operated here.
  std::vector<uint64_t> adopted_;
  std::unique_ptr<native::NativeDevice> device_;
  std::unique_ptr<driver::QueueDriver> driver_;
  ShardReports reports_;
  std::optional<Claims> claims_;       // set in the constructor
  std::optional<ShardChange> change_;  // likewise
  uint64_t seen_changes_ = ~uint64_t{0};
  uint32_t operated_ = 0;  // shards
  uint32_t busy_turns_ = 0;
  bool slept_ = true;  // the driver's descriptors may be readable
  // Between a request for notification and the sleep, the worker library looks once more.
  bool arming_ = false, last_look_ = false;
  bool watch_due_ = false;         // WatchOwners() is due in the next turn, before any sleep
  std::atomic<uint64_t> died_{0};  // a bit for each worker slot
  std::vector<uint64_t> watched_;  // owners' epochs + 1 by slot; 0: not watched
  std::string last_error_;
  std::optional<DeathWatcher> watcher_;  // if deaths are watched; last: its thread uses the others
};

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_NATIVE_NATIVE_DRIVER_H_
