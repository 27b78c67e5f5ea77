// Counts the deaths of a shard's owners, to tell a completion that kills every owner from owners
// that die of something else (lib/arena/layout.md, "Poison").
#ifndef SUPERVISOR_DRIVER_ENGINE_DEATH_COUNT_H_
#define SUPERVISOR_DRIVER_ENGINE_DEATH_COUNT_H_

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "lib/arena/arena.h"

namespace baton::driver_process {

// The position of an owner when it died. Values that the owner wrote itself are bounded to what is
// possible.
struct Death {
  uint64_t worker_id = 0;
  uint64_t acknowledged = 0;
  uint64_t logged = 0;  // completions, in all, when it ended: it knew of no later one
  // The completion in whose handler it was.
  std::optional<uint64_t> handling;
  // It may have died of a completion, but which one is not known: it died outside of its handlers,
  // or its library has layout version 1 and does not tell.
  bool in_the_dark = false;
};

// Describes the death of the owner of `epoch`, which has just ended or is claimed. `logged`: the
// number of completions logged when it ended; the log may have more by now.
Death DescribeDeath(const arena::Arena& arena, uint32_t shard, uint64_t epoch, uint64_t worker_id,
                    uint64_t logged);

// Thread-compatible.
class DeathCount {
 public:
  DeathCount() = default;
  // Restores what Save() stored.
  explicit DeathCount(const arena::DeathsRecord& saved);
  void Save(arena::DeathsRecord* saved) const;

  enum class Blame : uint8_t {
    kNobody,
    kSuspect,  // suspect(): owners died in its handler, one after the other
    kOldest,   // the oldest unacknowledged completion, for want of anything better
  };

  // Counts one more death. Blames a completion after `limit` deaths in its handler, if no other was
  // named in between. Blames the oldest after `limit` deaths without progress that name no
  // completion, or after twice as many that name different ones.
  Blame Add(const Death& death, uint32_t limit);
  void Clear();

  uint64_t suspect() const { return suspect_.value_or(0); }
  // Every completion before this one was logged at each counted death.
  uint64_t logged() const { return logged_; }
  // Returns the workers that died of what is blamed, oldest first, at most the last kRemembered.
  std::vector<uint64_t> WorkersOf(Blame blame) const;
  uint32_t DeathsOf(Blame blame) const { return blame == Blame::kSuspect ? run_ : deaths_; }

  static constexpr size_t kRemembered = arena::kRememberedDeaths;

 private:
  uint64_t acknowledged_ = 0;        // at the last death
  uint64_t logged_ = 0;              // at the first death
  uint32_t deaths_ = 0;              // without progress
  std::optional<uint64_t> suspect_;  // the completion that was named last
  uint32_t run_ = 0;                 // deaths that named it, and no other between
  std::deque<Death> last_;
};

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_ENGINE_DEATH_COUNT_H_
