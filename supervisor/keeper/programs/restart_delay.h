// How long a keeper waits before it starts a worker in the place of one that ended.
#ifndef SUPERVISOR_KEEPER_PROGRAMS_RESTART_DELAY_H_
#define SUPERVISOR_KEEPER_PROGRAMS_RESTART_DELAY_H_

#include <chrono>
#include <cstdint>
#include <utility>

#include "lib/waiting/back_off.h"
#include "proto/baton/v1/types.pb.h"

namespace baton::keeper {

class RestartDelay {
 public:
  // Notes that a worker ended after `lived_ns`. `served`: it, or another since its start, has
  // committed as an owner.
  void NoteEnd(uint64_t lived_ns, bool served, const v1::Policy& policy) {
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

  std::chrono::milliseconds length() const { return length_; }

 private:
  static constexpr std::chrono::milliseconds kShortest{10};
  static constexpr std::chrono::milliseconds kLongest{5000};
  // The limit while owners commit: they may die of a message that the next one is spared (poison).
  static constexpr std::chrono::milliseconds kLongestOfServers{100};
  static constexpr uint64_t kLongLifeNs = 2'000'000'000;

  BackOff back_off_{kShortest, kLongest};
  std::chrono::milliseconds length_ = kShortest;
  bool last_was_short_ = false;  // the life of the last worker that ended
};

}  // namespace baton::keeper

#endif  // SUPERVISOR_KEEPER_PROGRAMS_RESTART_DELAY_H_
