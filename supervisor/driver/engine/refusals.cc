#include "supervisor/driver/engine/refusals.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace baton::driver_process {
std::optional<std::string> Refusals::Tell(std::string_view why, uint64_t now_ns) {
  Reason& reason = Find(why);
  const bool known = reason.why == why;
  if (known && now_ns - reason.told_ns < reason.pause_ns) {
    ++reason.untold;
    return std::nullopt;
  }
  const uint64_t untold = std::exchange(reason.untold, 0);
  std::string text(why);
  if (known && untold > 0) absl::StrAppend(&text, " (", untold, " more were refused like this)");
  if (!known || untold == 0) reason.pauses.Reset();
  reason.pause_ns = static_cast<uint64_t>(reason.pauses.Next().count());
  reason.told_ns = now_ns;
  if (!known) reason.why = std::string(why);
  return text;
}

// Returns the entry of this reason or, if there is none, the one that was reported longest ago.
Refusals::Reason& Refusals::Find(std::string_view why) {
  for (Reason& reason : reasons_) {
    if (reason.why == why) return reason;
  }
  return *std::min_element(reasons_.begin(), reasons_.end(),
                           [](const Reason& a, const Reason& b) { return a.told_ns < b.told_ns; });
}

}  // namespace baton::driver_process
