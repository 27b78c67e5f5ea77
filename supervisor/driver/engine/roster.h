// Knows the workers that are attached to a service, and the properties by which one is chosen as
// the next owner of a shard.
#ifndef SUPERVISOR_DRIVER_ENGINE_ROSTER_H_
#define SUPERVISOR_DRIVER_ENGINE_ROSTER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "lib/arena/arena.h"

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

// Decides which workers may own a shard and which is chosen. Thread-compatible: the engine's
// thread.
class Roster {
 public:
  struct Worker {
    uint64_t id = 0;  // 0: the slot is free
    StateVersions versions;
    Standing standing = Standing::kFirst;
    bool ready = false;
    bool silent = false;   // has shown no sign of life for long; as an owner it hangs
    bool ended = false;    // has detached, is dead, or is fenced
    bool retired = false;  // is to end, and is given no shard
    bool fenced = false;
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

  void Add(uint32_t slot, uint64_t id, StateVersions versions, Standing standing);
  void Remove(uint32_t slot) { workers_[slot] = Worker{}; }

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

 private:
  static bool IsBetter(const Worker& worker, const Worker& than);

  arena::Arena* arena_;
  std::vector<Worker> workers_;  // by slot
};

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_ENGINE_ROSTER_H_
