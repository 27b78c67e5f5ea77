// Writes log lines with fields, beside spdlog's own lines: as text, or as one JSON object a line.
#ifndef LIB_LOG_LOG_H_
#define LIB_LOG_LOG_H_

#include <cstdint>
#include <string>
#include <string_view>

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

}  // namespace baton::log

#endif  // LIB_LOG_LOG_H_
