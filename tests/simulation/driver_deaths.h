// When drivers die, as the dice say.
#ifndef TESTS_SIMULATION_DRIVER_DEATHS_H_
#define TESTS_SIMULATION_DRIVER_DEATHS_H_

#include <cstdint>
#include <map>
#include <string>

#include "lib/arena/arena.h"
#include "tests/simulation/context.h"

namespace baton::simulation {

struct Mortality {
  uint32_t once_in = 0;   // points; 0: never
  uint32_t focus = 0;     // one in so many points, the same all the time, kills more often; 0: none
  uint32_t deaths = 0;    // at most
  uint64_t after_ns = 0;  // not before
  // The device says what is queued after so many deaths. Drivers before have used markers.
  uint32_t answers_after = ~0u;
};

class DriverDeaths {
 public:
  // Deaths are nothing's fault here, so drivers in `memory` do not count them.
  DriverDeaths(Context* context, arena::Arena* memory, const Mortality& mortality)
      : context_(context), memory_(memory), mortality_(mortality) {}

  // Returns whether the driver dies, which has come to this point. `where`: a literal.
  bool IsDue(const char* where);
  // Nobody dies from now on.
  void End() { mortality_.once_in = 0; }
  void Suspend(bool suspended) { suspended_ = suspended; }

  uint64_t count() const { return count_; }
  bool may_answer() const { return count_ >= mortality_.answers_after; }
  // Deaths of all drivers of this process so far, by where.
  static const std::map<std::string, uint64_t>& All();

 private:
  Context* const context_;
  arena::Arena* const memory_;
  Mortality mortality_;
  bool suspended_ = false;
  uint64_t count_ = 0;
};

}  // namespace baton::simulation

#endif  // TESTS_SIMULATION_DRIVER_DEATHS_H_
