#include "supervisor/cli/table.h"

#include <algorithm>

#include "supervisor/cli/format.h"

namespace baton {
namespace {

constexpr char kGap[] = "  ";

}  // namespace

Table::Table(std::vector<std::string> titles, TableStyle style) : style_(style) {
  for (std::string& title : titles) {
    Column column;
    if (title.starts_with('+')) {
      title.erase(0, 1);
      column.shown = style_.wide;
    }
    if (title.starts_with('>')) {
      title.erase(0, 1);
      column.right = true;
    }
    column.title = std::move(title);
    columns_.push_back(std::move(column));
  }
}

void Table::Add(std::vector<std::string> row) {
  row.resize(columns_.size());
  std::vector<std::string> shown;
  for (size_t i = 0; i < row.size(); ++i) {
    if (!columns_[i].shown) continue;
    shown.push_back(row[i].empty() ? "-" : Printable(row[i]));
  }
  rows_.push_back(std::move(shown));
}

void Table::Print(std::ostream& out, const std::string& indent) const {
  std::vector<std::string> titles;
  std::vector<bool> right;
  for (const Column& column : columns_) {
    if (!column.shown) continue;
    titles.push_back(column.title);
    right.push_back(column.right);
  }
  std::vector<size_t> widths(titles.size(), 0);
  const auto widen = [&](const std::vector<std::string>& row) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  };
  if (style_.headers) widen(titles);
  for (const auto& row : rows_) widen(row);
  const auto print_row = [&](const std::vector<std::string>& row) {
    out << indent;
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string fill(widths[i] - row[i].size(), ' ');
      const bool last = i + 1 == row.size();
      if (right[i]) out << fill;
      out << row[i];
      if (!right[i] && !last) out << fill;
      if (!last) out << kGap;
    }
    out << '\n';
  };
  if (style_.headers) print_row(titles);
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
