#ifndef SUPERVISOR_CLI_EVENT_PRINTER_H_
#define SUPERVISOR_CLI_EVENT_PRINTER_H_

#include <string>

#include "proto/baton/v1/types.pb.h"
#include "supervisor/cli/session.h"

namespace baton {

// Prints events as they come, each at once, in UTC.
class EventPrinter {
 public:
  explicit EventPrinter(Session* session) : session_(session) {}

  // In JSON the event, one a line. On a terminal, unless with -o wide: the time of the day, `head`,
  // and `text`, which is wrapped beside it; each day is named once, above its first event.
  // Otherwise `line`.
  void Print(const v1::Event& event, const std::string& head, const std::string& text,
             const std::string& line);
  bool printed_any() const { return printed_any_; }

 private:
  void PrintBelowDay(const v1::Event& event, const std::string& head, const std::string& text);

  Session* const session_;
  std::string day_;  // the last one that was named
  bool printed_any_ = false;
};

}  // namespace baton

#endif  // SUPERVISOR_CLI_EVENT_PRINTER_H_
