#include "supervisor/keeper/programs/restart_delay.h"

#include <utility>

namespace baton::keeper {

void RestartDelay::NoteEnd(uint64_t lived_ns, bool served, const v1::Policy& policy) {
  std::chrono::milliseconds first = kShortest;
  std::chrono::milliseconds most = served ? kLongestOfServers : kLongest;
  if (policy.has_restart()) {
    first = std::chrono::milliseconds(policy.restart().first_delay_ms());
    most = std::chrono::milliseconds(policy.restart().max_delay_ms());
  }
  const bool is_short = lived_ns < kLongLifeNs;
  const bool in_a_row = std::exchange(last_was_short_, is_short) && is_short;
  back_off_.SetLimits(first, most);
  if (!in_a_row) back_off_.Reset();
  length_ = std::chrono::duration_cast<std::chrono::milliseconds>(back_off_.Next());
}

}  // namespace baton::keeper
