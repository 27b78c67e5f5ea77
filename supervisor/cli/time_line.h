#ifndef SUPERVISOR_CLI_TIME_LINE_H_
#define SUPERVISOR_CLI_TIME_LINE_H_

#include <cstddef>
#include <cstdint>
#include <ostream>
#include <string>

namespace baton {

// Events on a terminal: a line for each, or more where one does not hold it, with the time
// of the day. Each day is named once, above its first line. All in UTC.
class TimeLine {
 public:
  TimeLine(std::ostream* out, size_t columns) : out_(out), columns_(columns) {}

  // `text` stands beside `head`, and is wrapped there.
  void Print(int64_t unix_micros, const std::string& head, const std::string& text);

 private:
  std::ostream* const out_;
  const size_t columns_;
  std::string day_;  // the last one that was named
};

}  // namespace baton

#endif  // SUPERVISOR_CLI_TIME_LINE_H_
