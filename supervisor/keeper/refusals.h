// Connections that are refused, as operators are told of them: peers try again and again.
#ifndef SUPERVISOR_KEEPER_REFUSALS_H_
#define SUPERVISOR_KEEPER_REFUSALS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"

namespace baton::keeper {

// Thread-compatible.
class Refusals {
 public:
  // What to tell; nothing: the same was told less than a second ago, and this is counted.
  std::optional<std::string> Tell(std::string_view why, uint64_t now_ns) {
    constexpr uint64_t kSecondNs = 1'000'000'000;
    if (why == last_ && now_ns - told_ns_ < kSecondNs) {
      ++untold_;
      return std::nullopt;
    }
    std::string text(why);
    if (untold_ > 0) absl::StrAppend(&text, " (", untold_, " more were refused like the last)");
    untold_ = 0;
    last_ = std::string(why);
    told_ns_ = now_ns;
    return text;
  }

 private:
  std::string last_;
  uint64_t told_ns_ = 0;
  uint64_t untold_ = 0;
};

}  // namespace baton::keeper

#endif  // SUPERVISOR_KEEPER_REFUSALS_H_
