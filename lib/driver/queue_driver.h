// Operates the queues of a service: applies committed transactions to its queue pairs and writes
// completions and connection events to its logs. This class is the interface; the parts that
// driver_parts.h names do the work.
//
// Others write in the driver log memory, too: Ownership (ownership.h) the ownership of shards, the
// engine's Roster the workers, and a native service's ConnectionManager what no driver has yet. The
// driver reads the epoch of a shard's ownership, which says which commits count. It does not decide
// who owns a shard, and does not know how the owner waits.
//
// A driver can die at any instruction. Its successor continues from the arena and the device's
// objects (Adopt; layout.md has the algorithm). So the driver stores in the arena what it is about
// to do before it does it, and the result afterwards, and every step is idempotent.
//
// Thread-compatible: the driver's thread.
#ifndef LIB_DRIVER_QUEUE_DRIVER_H_
#define LIB_DRIVER_QUEUE_DRIVER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "lib/arena/arena.h"
#include "lib/driver/connection_state.h"
#include "lib/driver/device_objects.h"
#include "lib/driver/driver_parts.h"
#include "lib/verbs/verbs.h"

// In test builds a simulation overrides these functions, to kill and replace the driver there.
#ifdef BATON_TEST_HOOKS
#define BATON_DRIVER_SEAM virtual
#else
#define BATON_DRIVER_SEAM
#endif

namespace baton::driver {

class QueueDriver {
 public:
  // Creates a driver, one of several of a service or the only one. It operates no shard before
  // Adopt(). The caller keeps `arena` and `device` alive longer than the driver.
  static std::unique_ptr<QueueDriver> Create(arena::Arena* arena, verbs::Device* device,
                                             DriverObserver* observer,
                                             std::shared_ptr<DeviceObjects> objects);
  // Starts to operate these shards. REQUIRES: their former driver is dead or has left them. A
  // connection with ambiguous requests continues at once if the device can say what is queued
  // (QueuePair::LastQueued), and otherwise when its own marker has completed. A driver may be
  // killed in this call; this or another driver then calls it again. Where three in a row have died
  // at the same connection's work, the connection is failed; where they died reading a transaction,
  // that is invalid (layout.md, "Crash loops"). Error: the shards can no longer be operated.
  absl::Status Adopt(absl::Span<const uint32_t> shards);
  // The same, but reads only `connections`, which must include all connections in these shards.
  absl::Status Adopt(absl::Span<const uint32_t> shards, absl::Span<const uint32_t> connections);
  // Returns the other shards into which published but not applied transactions of this shard accept
  // connections. Only a driver that has adopted both shards can apply them.
  std::vector<uint32_t> AcceptTargets(uint32_t shard) const {
    return parts_->commits.AcceptTargets(shard);
  }
  // Stops operating the shard. Another driver may adopt it.
  void Leave(uint32_t shard) { parts_->teardown.Leave(shard); }
  bool Operates(uint32_t shard) const { return parts_->state.Operates(shard); }

  BATON_DRIVER_SEAM ~QueueDriver();

  // The objects that a successor needs besides the arena.
  const std::shared_ptr<DeviceObjects>& objects() const { return parts_->state.objects; }

  // Applies the next published transaction of the shard's current epoch. Sets `*error` if it
  // returns kInvalid.
  BATON_DRIVER_SEAM CommitOutcome ApplyNext(uint32_t shard, absl::Status* error) {
    return parts_->commits.ApplyNext(shard, error);
  }

  // Returns the number of entries in the bank of the current epoch that are published and not
  // applied. An impossible tail counts as one entry, which ApplyNext() then finds invalid.
  uint64_t PendingEntries(uint32_t shard) const { return parts_->commits.PendingEntries(shard); }

  // Moves completions from the completion queue to the completion log, in a few batches, each
  // published before the next. The limit keeps a queue from delaying the others. Returns true if it
  // consumed a completion; then there may be more. A consumed completion cancels a pending
  // notification request, so the caller must request again. Some completions (recovery markers) are
  // not reported to the owner. Error: the completion queue is unusable.
  BATON_DRIVER_SEAM absl::StatusOr<bool> PollCompletions(uint32_t shard) {
    return parts_->completions.PollCompletions(shard);
  }
  absl::Status RequestNotification(uint32_t shard) {
    return objects()->completion_queues[shard]->RequestNotification();
  }

  // Handles one connection-manager event. Returns false if there is none. Sets `*shard` to the
  // shard whose completion log got an entry, or kNoShard.
  static constexpr uint32_t kNoShard = DeviceObjects::kNoShard;
  BATON_DRIVER_SEAM bool HandleEvent(uint32_t* shard) { return parts_->setup.HandleEvent(shard); }

  // Handles one event of the device about a queue pair. Returns false if there is none. Ends the
  // connection of a failed one.
  bool HandleDeviceEvent(uint32_t* shard);

  // Returns true if no shard can receive any more: each shared receive queue has refused a receive.
  bool AllBroken() const { return parts_->shared.AllBroken(); }

  // Gives up the device: refuses new connections and begins to end all others with kFatalError.
  // AllEnded() returns true when all have ended and their logs report it to the owners.
  void EndAll(std::string_view why) { parts_->teardown.EndAll(why); }
  bool AllEnded() const { return parts_->teardown.AllEnded(); }
  // Returns true if connections wait until their device has done with them: PollCompletions() then
  // has to be called although nothing signals.
  bool HasAbandoned() const { return !parts_->state.abandoned.empty(); }
  // Ends at once the connections of `shard` that the device does not flush any more. Destroys their
  // queue pairs. Which of their requests had completed stays unknown.
  void GiveUp(uint32_t shard, std::string_view why);

  // ---- A completion on which owners die (layout.md, "Poison"; in poison.cc).

  // Returns the oldest unacknowledged completion before `end` that is not void. Prefers those of
  // connections that were not failed before.
  std::optional<uint64_t> OldestToBlame(uint32_t shard, uint64_t end) const;
  // Fails the connection of an unacknowledged completion and rewrites its entries from there on.
  // Returns the entry as it was. REQUIRES: the shard has no owner or is only claimed, so that
  // nobody reads its log. `known`: the level chosen by a driver that died in this call; none: the
  // entry determines it. kFailedPrecondition: nothing was done, because the shard has an owner, or
  // its log has no such unacknowledged completion of an existing connection.
  absl::StatusOr<arena::CompletionEntry> Poison(
      uint32_t shard, uint64_t completion, std::string_view why,
      std::optional<arena::PoisonLevel> known = std::nullopt);

  const ShardCounters& counters(uint32_t shard) const {
    return parts_->state.shards[shard].counters;
  }
  const RecoveryCounters& recovery() const { return parts_->state.recovery; }
  // The number of work requests in the transaction that ApplyNext() applied last.
  size_t requests_applied() const { return parts_->commits.requests_applied(); }
  uint32_t connection_count() const { return parts_->state.connection_count; }

  // Test builds only: acknowledges every completion at a cut, as a broken recovery would.
  void ForgetUnacknowledged(uint32_t shard);

 protected:
  QueueDriver(QueueDriver&&) = default;
  QueueDriver& operator=(QueueDriver&&) = default;

 private:
  QueueDriver(arena::Arena* arena, verbs::Device* device, DriverObserver* observer,
              std::shared_ptr<DeviceObjects> objects);

  std::unique_ptr<DriverParts> parts_;
};

}  // namespace baton::driver

#endif  // LIB_DRIVER_QUEUE_DRIVER_H_
