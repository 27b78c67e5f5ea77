// How many lines a log takes: of each kind so many in a second, so that a flood of one hides no
// other.
#ifndef LIB_LOG_LINE_LIMIT_H_
#define LIB_LOG_LINE_LIMIT_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "lib/waiting/token_bucket.h"

namespace baton::log {

// Thread-compatible.
class LineLimit {
 public:
  static constexpr uint32_t kBurst = 50;      // lines of one kind at once
  static constexpr uint32_t kPerSecond = 10;  // and then
  static constexpr size_t kMaxKinds = 64;     // more count as one

  // Whether a line of `kind` may be written; it is counted otherwise. `now_ns`: monotonic.
  bool Take(std::string_view kind, uint64_t now_ns);

  // Tells, and forgets, how many lines of each kind were not written.
  void TakeLeftOut(const std::function<void(const std::string& kind, uint64_t lines)>& tell);

 private:
  struct Kind {
    TokenBucket lines;
    uint64_t left_out = 0;
  };
  Kind& Find(std::string_view kind, uint64_t now_ns);

  std::map<std::string, Kind, std::less<>> kinds_;
};

}  // namespace baton::log

#endif  // LIB_LOG_LINE_LIMIT_H_
