// The properties by which a worker is chosen as the next owner of a shard.
#ifndef SUPERVISOR_DRIVER_ENGINE_CANDIDATE_H_
#define SUPERVISOR_DRIVER_ENGINE_CANDIDATE_H_

#include <cstdint>

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

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_ENGINE_CANDIDATE_H_
