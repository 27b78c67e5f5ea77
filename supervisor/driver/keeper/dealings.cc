#include "supervisor/driver/keeper/dealings.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"

namespace baton::driver_process {

std::deque<Dealings::Count>::iterator Dealings::Find(const std::string& what) {
  return std::find_if(counts_.begin(), counts_.end(),
                      [&](const Count& count) { return count.what == what; });
}

absl::Status Dealings::Begin(const internal::DealWith& what, Clock::time_point now) {
  std::erase_if(counts_, [&](const Count& count) { return now - count.last_death >= kRemembered; });
  if (!present_.what().empty()) {
    if (const auto done = Find(present_.what()); done != counts_.end()) {
      counts_.erase(done);
      count_ended_ = true;
    }
  }
  present_ = what;
  const auto count = Find(what.what());
  if (count == counts_.end() || count->deaths < kMostDeaths) return absl::OkStatus();
  present_.Clear();
  return absl::FailedPreconditionError(absl::StrCat(
      what.what(), " is refused: ", count->deaths,
      " keepers in a row ended while they dealt with it, and the last one ", count->how,
      ". Keep the core files of baton-keeper and report it. It is tried again in ",
      kRemembered.count(),
      " minutes, or once `baton upgrade SERVICE --baton` has replaced the keeper"));
}

std::optional<Dealings::Death> Dealings::NoteDeath(const std::string& how, Clock::time_point now) {
  if (present_.what().empty()) return std::nullopt;
  Death death;
  death.what.Swap(&present_);
  auto count = Find(death.what.what());
  if (count == counts_.end()) {
    if (counts_.size() >= kMostCounts) counts_.pop_front();
    counts_.push_back({death.what.what(), 0, "", now});
    count = std::prev(counts_.end());
  }
  count->how = how;
  count->last_death = now;
  death.deaths = ++count->deaths;
  if (death.deaths >= kMostDeaths && !death.what.held_key().empty()) counts_.erase(count);
  return death;
}

}  // namespace baton::driver_process
