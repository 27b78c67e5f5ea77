#include "supervisor/cli/table.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "supervisor/cli/format.h"

namespace baton {
namespace {

constexpr char kGap[] = "  ";
constexpr size_t kGapWidth = 2;
constexpr size_t kNarrowest = 16;  // the narrowest column to which texts are wrapped

// Takes `mark` from the front of `text`, if it is there.
bool Take(char mark, std::string* text) {
  if (!text->starts_with(mark)) return false;
  text->erase(0, 1);
  return true;
}

// Returns `text`, wrapped if it does not fit. It begins at `column` and is the last of its line.
std::string Fitted(const std::string& text, size_t column, const TableStyle& style) {
  const bool fits = style.columns == 0 || column + WidthOf(text) <= style.columns;
  if (fits || column + kNarrowest > style.columns) return text;
  return Wrap(text, column, column, style.columns);
}

// Returns the words of `text`. Text in backquotes is one word, because it is there to be copied.
std::vector<std::string> Words(const std::string& text) {
  std::vector<std::string> words;
  std::string word;
  for (size_t i = 0; i <= text.size(); ++i) {
    const bool ends = i == text.size() || text[i] == ' ' || text[i] == '\n';
    if (ends) {
      if (!word.empty()) words.push_back(std::exchange(word, {}));
      continue;
    }
    const size_t close = text[i] == '`' ? text.find('`', i + 1) : std::string::npos;
    const size_t last = close == std::string::npos ? i : close;
    word.append(text, i, last - i + 1);
    i = last;
  }
  return words;
}

}  // namespace

std::string Wrap(const std::string& text, size_t indent, size_t column, size_t columns) {
  std::string wrapped;
  bool first = true;
  for (const std::string& word : Words(text)) {
    const size_t width = WidthOf(word);
    if (!first && column + 1 + width > columns) {
      absl::StrAppend(&wrapped, "\n", std::string(indent, ' '), word);
      column = indent + width;
      continue;
    }
    absl::StrAppend(&wrapped, first ? "" : " ", word);
    column += width + (first ? 0 : 1);
    first = false;
  }
  return wrapped;
}

size_t WidthOf(const std::string& text) {
  constexpr unsigned char kKind = 0xc0, kContinuation = 0x80;
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char byte) {
    return (static_cast<unsigned char>(byte) & kKind) != kContinuation;
  }));
}

std::string Painted(const std::string& text, Colour colour) {
  const char* code = colour == Colour::kGreen    ? "\x1b[32m"
                     : colour == Colour::kYellow ? "\x1b[33m"
                                                 : "\x1b[31m";
  return colour == Colour::kNone ? text : absl::StrCat(code, text, "\x1b[0m");
}

Colour ColourOf(std::string_view state) {
  static const std::map<std::string_view, Colour>& colours =
      *new std::map<std::string_view, Colour>{
          {"ok", Colour::kGreen},          {"ready", Colour::kGreen},
          {"established", Colour::kGreen}, {"completed", Colour::kGreen},
          {"OK", Colour::kGreen},          {"waiting", Colour::kYellow},
          {"drained", Colour::kYellow},    {"dying", Colour::kYellow},
          {"attached", Colour::kYellow},   {"requested", Colour::kYellow},
          {"connecting", Colour::kYellow}, {"draining", Colour::kYellow},
          {"starting", Colour::kYellow},   {"handing over", Colour::kYellow},
          {"watching", Colour::kYellow},   {"canary", Colour::kYellow},
          {"retiring", Colour::kYellow},   {"returning", Colour::kYellow},
          {"refused", Colour::kYellow},    {"WARNING", Colour::kYellow},
          {"unreachable", Colour::kRed},   {"bad", Colour::kRed},
          {"failed", Colour::kRed},        {"rolled back", Colour::kRed},
          {"nobody", Colour::kRed},        {"PROBLEM", Colour::kRed},
      };
  const size_t end = state.find_first_of(",:(");
  std::string_view word = state.substr(0, end);
  while (word.ends_with(' ')) word.remove_suffix(1);
  const auto found = colours.find(word);
  return found == colours.end() ? Colour::kNone : found->second;
}

Table::Table(std::vector<std::string> titles, TableStyle style) : style_(style) {
  for (std::string& title : titles) {
    Column column;
    if (Take('+', &title)) column.shown = style_.wide;
    column.right = Take('>', &title);
    column.state = Take('!', &title);
    column.title = std::move(title);
    shown_.push_back(column.shown);
    if (column.shown) columns_.push_back(std::move(column));
  }
}

void Table::Add(std::initializer_list<absl::AlphaNum> row) {
  std::vector<std::string> cells;
  for (const absl::AlphaNum& cell : row) cells.emplace_back(cell.Piece());
  Add(std::move(cells));
}

void Table::Add(std::vector<std::string> row) {
  row.resize(shown_.size());
  Row cells;
  for (size_t i = 0; i < row.size(); ++i) {
    if (shown_[i]) cells.push_back(row[i].empty() ? "-" : Printable(row[i]));
  }
  rows_.push_back(std::move(cells));
}

std::vector<size_t> Table::Widths() const {
  std::vector<size_t> widths(columns_.size(), 0);
  for (size_t i = 0; i < widths.size(); ++i) {
    if (style_.headers) widths[i] = WidthOf(columns_[i].title);
    for (const Row& row : rows_) widths[i] = std::max(widths[i], WidthOf(row[i]));
  }
  return widths;
}

void Table::PrintRow(std::ostream& out, const std::string& indent,
                     const std::vector<size_t>& widths, const Row& row, bool title) const {
  out << indent;
  size_t column = indent.size();
  for (size_t i = 0; i < row.size(); ++i) {
    const std::string fill(widths[i] - WidthOf(row[i]), ' ');
    const bool last = i + 1 == row.size();
    const bool paint = style_.colour && columns_[i].state && !title;
    const std::string cell = last && !columns_[i].right ? Fitted(row[i], column, style_) : row[i];
    if (columns_[i].right) out << fill;
    out << (paint ? Painted(cell, ColourOf(row[i])) : cell);
    if (!columns_[i].right && !last) out << fill;
    if (!last) out << kGap;
    column += widths[i] + kGapWidth;
  }
  out << '\n';
}

void Table::Print(std::ostream& out, const std::string& indent) const {
  const std::vector<size_t> widths = Widths();
  Row titles;
  for (const Column& column : columns_) titles.push_back(column.title);
  if (style_.headers) PrintRow(out, indent, widths, titles, /*title=*/true);
  for (const Row& row : rows_) PrintRow(out, indent, widths, row, /*title=*/false);
}

void PrintFields(std::ostream& out, const std::vector<std::pair<std::string, std::string>>& fields,
                 const TableStyle& style, const std::string& indent) {
  const auto bare = [](std::string name) {
    Take('!', &name);
    return name;
  };
  size_t width = 0;
  for (const auto& [name, value] : fields) width = std::max(width, bare(name).size());
  const size_t column = indent.size() + width + 1 + kGapWidth;
  for (const auto& [marked, value] : fields) {
    const std::string name = bare(marked);
    const std::string text = Fitted(value.empty() ? "-" : Printable(value), column, style);
    const bool paint = style.colour && name != marked;
    out << indent << name << ':' << std::string(width - name.size(), ' ') << kGap
        << (paint ? Painted(text, ColourOf(text)) : text) << '\n';
  }
}

}  // namespace baton
