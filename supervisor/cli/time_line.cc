#include "supervisor/cli/time_line.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "lib/text/utc_time.h"
#include "supervisor/cli/format.h"
#include "supervisor/cli/wrap.h"

namespace baton {
namespace {

constexpr size_t kNarrowest = 24;  // text is not wrapped to less

}  // namespace

void TimeLine::Print(int64_t unix_micros, const std::string& head, const std::string& text) {
  const std::string time = UtcTime(unix_micros);  // "2025-01-31T09:15:00.123456Z"
  const size_t clock = time.find('T');
  if (const std::string day = time.substr(0, clock); day != day_) {
    *out_ << day << " UTC\n";
    day_ = day;
  }
  const std::string begin =
      absl::StrCat(time.substr(clock + 1, sizeof("09:15:00.123") - 1), "  ", Printable(head), "  ");
  const size_t widest = columns_ > kNarrowest ? columns_ - kNarrowest : 0;
  const size_t indent = std::min(WidthOf(begin), widest);
  *out_ << begin << Wrap(Printable(text), indent, WidthOf(begin), columns_) << std::endl;
}

}  // namespace baton
