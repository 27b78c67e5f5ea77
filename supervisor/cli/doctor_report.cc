#include "supervisor/cli/reports.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "supervisor/cli/format.h"
#include "supervisor/cli/table.h"

namespace baton {
namespace {

constexpr size_t kSeverityWidth = 7;  // "PROBLEM", "WARNING"
constexpr char kGap[] = "  ";

// "SEVERITY_OK" as "OK".
std::string Name(v1::Severity severity) {
  const std::string name = v1::Severity_Name(severity);
  return name.substr(name.find('_') + 1);
}

std::string Padded(std::string text, size_t width) {
  text.resize(std::max(width, text.size()), ' ');
  return text;
}

}  // namespace

void PrintDoctorReport(std::ostream& out, const v1::DoctorReport& report, const TableStyle& style) {
  size_t width = 0;
  for (const v1::Finding& finding : report.findings()) {
    width = std::max(width, finding.check().size());
  }
  const size_t column = kSeverityWidth + width + 2 * std::string(kGap).size();
  const std::string indent(column, ' ');
  const auto fitted = [&](const std::string& text, size_t from) {
    const std::string line = Printable(text);
    return style.columns == 0 ? line : Wrap(line, from, from, style.columns);
  };
  for (const v1::Finding& finding : report.findings()) {
    const std::string severity = Name(finding.severity());
    const std::string padded = Padded(severity, kSeverityWidth);
    out << (style.colour ? Painted(padded, ColourOf(severity)) : padded) << kGap
        << Padded(finding.check(), width) << kGap
        << fitted(absl::StrCat(finding.subject(), finding.subject().empty() ? "" : ": ",
                               finding.message()),
                  column)
        << '\n';
    if (finding.severity() == v1::SEVERITY_OK) continue;
    out << indent << "so:   " << fitted(finding.consequence(), column + 6) << '\n';
    // Not wrapped, because it is there to be copied.
    out << indent << "cure: " << Printable(finding.cure()) << '\n';
  }
  const uint64_t fine =
      static_cast<uint64_t>(report.findings_size()) - report.problems() - report.warnings();
  out << '\n'
      << FormatCount(report.problems(), "problem") << ", "
      << FormatCount(report.warnings(), "warning") << ", " << fine << " ok\n";
}

}  // namespace baton
