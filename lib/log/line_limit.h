// Limits how many lines of each kind a log takes, so that a flood of one kind hides no other.
#ifndef LIB_LOG_LINE_LIMIT_H_
#define LIB_LOG_LINE_LIMIT_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "lib/base/token_bucket.h"

namespace baton::log {

// Thread-compatible.
class LineLimit {
 public:
  static constexpr uint32_t kBurst = 50;      // lines of one kind at once,
  static constexpr uint32_t kPerSecond = 10;  // and per second after that
  static constexpr size_t kMaxKinds = 64;     // all further kinds count as one

  // Returns true if a line of `kind` may be written, and counts it otherwise. `now_ns`: monotonic.
  bool Take(std::string_view kind, uint64_t now_ns);

  // Calls `tell` for each kind of which lines were not written, with their number, and forgets
  // them.
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
