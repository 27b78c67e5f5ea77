#include "supervisor/cli/table.h"

#include <algorithm>

#include "supervisor/cli/format.h"

namespace baton {
namespace {

constexpr char kGap[] = "  ";

}  // namespace

Table::Table(std::vector<std::string> titles) : titles_(std::move(titles)) {
  for (std::string& title : titles_) {
    right_.push_back(title.starts_with('>'));
    if (right_.back()) title.erase(0, 1);
  }
}

void Table::Add(std::vector<std::string> row) {
  row.resize(titles_.size());
  for (std::string& cell : row) {
    cell = cell.empty() ? "-" : Printable(std::move(cell));
  }
  rows_.push_back(std::move(row));
}

void Table::Print(std::ostream& out, const std::string& indent) const {
  std::vector<size_t> widths;
  for (const std::string& title : titles_) widths.push_back(title.size());
  for (const auto& row : rows_) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  const auto print_row = [&](const std::vector<std::string>& row) {
    out << indent;
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string fill(widths[i] - row[i].size(), ' ');
      const bool last = i + 1 == row.size();
      if (right_[i]) out << fill;
      out << row[i];
      if (!right_[i] && !last) out << fill;
      if (!last) out << kGap;
    }
    out << '\n';
  };
  print_row(titles_);
  for (const auto& row : rows_) print_row(row);
}

void PrintFields(std::ostream& out, const std::vector<std::pair<std::string, std::string>>& fields,
                 const std::string& indent) {
  size_t width = 0;
  for (const auto& [name, value] : fields) width = std::max(width, name.size());
  for (const auto& [name, value] : fields) {
    out << indent << name << ':' << std::string(width - name.size(), ' ') << kGap
        << (value.empty() ? "-" : Printable(value)) << '\n';
  }
}

}  // namespace baton
