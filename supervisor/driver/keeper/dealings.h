// Counts the keepers that end while they deal with the same thing, so that what kills each keeper
// costs itself alone.
#ifndef SUPERVISOR_DRIVER_KEEPER_DEALINGS_H_
#define SUPERVISOR_DRIVER_KEEPER_DEALINGS_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "proto/baton/internal/driver.pb.h"

namespace baton::driver_process {

// Bounded: forgets the thing whose count is the oldest. Thread-compatible.
class Dealings {
 public:
  static constexpr uint32_t kMostDeaths = 3;
  static constexpr size_t kMostCounts = 64;
  // So long after the last death a count ends: memory may have been short only then.
  static constexpr std::chrono::minutes kRemembered{10};
  using Clock = std::chrono::steady_clock;

  // The keeper deals with `what` from now on, and is done with what it dealt with before, whose
  // count ends. kFailedPrecondition: kMostDeaths keepers have ended while they dealt with `what`.
  // The keeper must refuse it, and deals with nothing.
  absl::Status Begin(const internal::DealWith& what, Clock::time_point now = Clock::now());

  struct Death {
    internal::DealWith what;
    uint32_t deaths = 0;  // of keepers in a row that dealt with it
  };
  // Notes that the keeper has ended, and `how`. Returns what it was dealing with; empty: nothing is
  // known. The count of a held entry ends with its kMostDeaths-th death: the caller sets it aside.
  std::optional<Death> NoteDeath(const std::string& how, Clock::time_point now = Clock::now());
  // Notes that the keeper has ended for a reason that has nothing to do with what it dealt with.
  void NoteOrderlyEnd() { present_.Clear(); }
  // This process follows a dead one, which was told last that its keeper deals with `what`.
  void Follow(internal::DealWith what) { present_ = std::move(what); }
  // Returns whether the count of something that a keeper is done with has ended since the last
  // call. A process that follows this one has to know it.
  bool TakeCountEnded() { return std::exchange(count_ended_, false); }
  // Ends all counts, because other keepers follow that may not die of the same things.
  void ForgetCounts() { counts_.clear(); }

 private:
  struct Count {
    std::string what;
    uint32_t deaths = 0;
    std::string how;  // the last of these keepers ended
    Clock::time_point last_death;
  };

  std::deque<Count>::iterator Find(const std::string& what);

  internal::DealWith present_;  // what the keeper deals with
  std::deque<Count> counts_;    // oldest first
  bool count_ended_ = false;
};

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_KEEPER_DEALINGS_H_
