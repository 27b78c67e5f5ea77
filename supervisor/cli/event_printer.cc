#include "supervisor/cli/event_printer.h"

#include <algorithm>
#include <cstddef>
#include <ostream>

#include "absl/strings/str_cat.h"
#include "supervisor/cli/format.h"
#include "supervisor/cli/text.h"

namespace baton {
namespace {

constexpr size_t kNarrowest = 24;  // text is not wrapped to less

}  // namespace

void EventPrinter::Print(const v1::Event& event, const std::string& head, const std::string& text,
                         const std::string& line) {
  printed_any_ = true;
  if (session_->json) {
    session_->out << ToJson(event) << std::endl;
  } else if (session_->style.columns > 0 && !session_->style.wide) {
    PrintBelowDay(event, head, text);
  } else {
    session_->out << Printable(line) << std::endl;
  }
}

void EventPrinter::PrintBelowDay(const v1::Event& event, const std::string& head,
                                 const std::string& text) {
  const std::string time = FormatTime(event.unix_micros());  // "2025-01-31T09:15:00.123456Z"
  const size_t clock = time.find('T');
  if (const std::string day = time.substr(0, clock); day != day_) {
    session_->out << day << " UTC\n";
    day_ = day;
  }
  const std::string begin =
      absl::StrCat(time.substr(clock + 1, sizeof("09:15:00.123") - 1), "  ", Printable(head), "  ");
  const size_t columns = session_->style.columns;
  const size_t widest = columns > kNarrowest ? columns - kNarrowest : 0;
  const size_t indent = std::min(WidthOf(begin), widest);
  session_->out << begin << Wrap(Printable(text), indent, WidthOf(begin), columns) << std::endl;
}

}  // namespace baton
