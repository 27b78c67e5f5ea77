// Knows the workers that are attached to a service, and the properties by which one is chosen as
// the next owner of a shard.
#ifndef SUPERVISOR_DRIVER_ENGINE_ROSTER_H_
#define SUPERVISOR_DRIVER_ENGINE_ROSTER_H_

#include <poll.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "lib/arena/arena.h"
#include "lib/base/file_descriptor.h"

namespace baton::driver_process {

// Formats of application state that a worker declared. All zero: the worker declared nothing, and
// takes every version.
struct StateVersions {
  uint32_t reads_min = 0;
  uint32_t reads_max = 0;
  uint32_t writes = 0;

  bool declared() const { return reads_min != 0 || reads_max != 0 || writes != 0; }
  bool Reads(uint32_t version) const {
    return !declared() || (reads_min <= version && version <= reads_max);
  }
};

// Workers of kFirst are chosen as successors and heirs. Those of kLast are chosen only when no
// worker of kFirst is ready.
enum class Standing : uint8_t { kLast, kFirst };

// Decides which workers may own a shard and which is chosen, and wakes them. Thread-compatible: the
// engine's thread.
class Roster {
 public:
  struct Worker {
    uint64_t id = 0;  // 0: the slot is free
    FileDescriptor wake;
    StateVersions versions;
    Standing standing = Standing::kFirst;
    bool ready = false;
    bool silent = false;   // has shown no sign of life for long; as an owner it hangs
    bool ended = false;    // has detached, is dead, or is fenced
    bool retired = false;  // is to end, and is given no shard
    bool fenced = false;
    bool notify = false;  // has something new
    bool deaf = false;    // closed its end of `wake`, or passed descriptors there
    uint32_t shards = 0;  // that it owns, or is to own
  };

  // The requirements of a shard for its next owner.
  struct Vacancy {
    uint32_t state_version = 0;             // that the next owner must read; 0: any
    uint64_t promised_id = 0;               // the worker to prefer to all others; 0: none
    uint32_t except_slot = arena::kNobody;  // of the present owner
  };

  // `arena` outlives it.
  explicit Roster(arena::Arena* arena) : arena_(arena), workers_(arena->shape().workers) {}

  void Add(uint32_t slot, uint64_t id, FileDescriptor wake, StateVersions versions,
           Standing standing);
  void Remove(uint32_t slot);

  Worker& operator[](uint32_t slot) { return workers_[slot]; }
  const Worker& operator[](uint32_t slot) const { return workers_[slot]; }
  // Returns nullptr if the slot is free or another worker's by now.
  Worker* Find(uint32_t slot, uint64_t id) {
    return workers_[slot].id == id ? &workers_[slot] : nullptr;
  }

  static bool CanServe(const Worker& worker);
  static bool ReadsState(const Worker& worker, uint32_t version);
  // kFailedPrecondition says why the worker cannot take a shard whose owner writes this version.
  static absl::Status CheckSuccessor(const Worker& worker, uint32_t version);
  // Returns the slot of the best worker; kNobody: there is none, and WhyNobody() says why.
  uint32_t Choose(const Vacancy& vacancy) const;
  std::string WhyNobody(const Vacancy& vacancy) const;

  // Asks the worker, through the arena, to end.
  void AskToStop(uint32_t slot);

  // Called when the worker has something new. If it sleeps, the next WakeNotified() wakes it.
  void Notify(uint32_t slot) { workers_[slot].notify = any_notified_ = true; }
  void WakeNotified() {
    if (any_notified_) WakeSleepers();
  }
  // Fills `entries`, which has room for all workers, with the sockets that wake the engine, for
  // poll(2). Returns their number. Pass the polled entries to TakeSignals() before any other
  // change.
  size_t ListenForSignals(pollfd* entries) const;
  void TakeSignals(const pollfd* entries);

 private:
  static bool IsBetter(const Worker& worker, const Worker& than);
  void WakeSleepers();

  arena::Arena* arena_;
  std::vector<Worker> workers_;  // by slot
  bool any_notified_ = false;
};

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_ENGINE_ROSTER_H_
