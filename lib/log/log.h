// These functions write log lines with fields, beside spdlog's own lines: as text, or as one JSON
// object a line. LineLimit bounds how many lines of a kind there are.
#ifndef LIB_LOG_LOG_H_
#define LIB_LOG_LOG_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "lib/base/token_bucket.h"
#include "spdlog/common.h"

namespace baton::log {

// The subject of a line. Fields that are empty, 0 or -1 are left out.
struct Subject {
  std::string_view service = {};
  std::string_view kind = {};          // an event's
  std::string_view trace_parent = {};  // W3C trace context
  uint64_t worker_id = 0;
  int shard = -1;
  int connection = -1;
};

// Writes a line to the default logger. As text it is "KIND: MESSAGE (traceparent …)" without other
// fields, so `message` names the service if a reader is to know it. Thread-safe, like spdlog.
void Write(spdlog::level::level_enum level, const Subject& subject, std::string_view message);

// Makes each further line, also of spdlog's own functions, an object with `time` (RFC 3339, UTC),
// `level`, `process`, `message` and the fields of Subject. A line has at most 4096 bytes
// (PIPE_BUF), so that lines of several processes do not mix in a pipe: a longer message is cut. A
// byte that is not UTF-8 is written as "?". `service` is that of lines that name none; empty: they
// have none. Call it once, when the default logger is set, before other threads start.
void UseJson(std::string process, std::string service);
bool IsJson();

// Limits how many lines of each kind a log takes, so that a flood of one kind hides no other.
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

#endif  // LIB_LOG_LOG_H_
