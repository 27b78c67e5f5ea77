// Text on a terminal: wrapped, in colours, and aligned in tables with a header or lists of names
// with values.
#ifndef SUPERVISOR_CLI_TABLE_H_
#define SUPERVISOR_CLI_TABLE_H_

#include <cstddef>
#include <initializer_list>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace baton {

// Breaks `text` between words into lines of at most `columns`, without an end of the last one. The
// first line begins at `column`, the others are indented by `indent`. A word that is longer than a
// line stays whole, as does what stands in `backquotes`.
std::string Wrap(const std::string& text, size_t indent, size_t column, size_t columns);

// The columns that `text`, valid UTF-8, takes: one for each character.
size_t WidthOf(const std::string& text);

// Colours of a terminal. They only repeat what words say.

enum class Colour { kNone, kGreen, kYellow, kRed };

// `text` in that colour; `text` itself for kNone.
std::string Painted(const std::string& text, Colour colour);

// The colour of a state as FormatState() and others write it, with or without what follows it:
// "watching, 25s left", "bad: disk full". Green: nothing is to be done. Yellow: it passes, or waits
// for something. Red: something failed. kNone for every other text.
Colour ColourOf(std::string_view state);

struct TableStyle {
  bool wide = false;  // with the columns that not everybody wants to see
  bool headers = true;
  bool colour = false;  // paints states
  // The terminal's width. Long texts are wrapped to its columns; 0: there is none.
  size_t columns = 0;
  int rows = 0;
};

class Table {
 public:
  // A title that begins with '+' is of a column that only wide tables have; then, one that begins
  // with '>' aligns its column to the right, as numbers are, and one with '!' has states, which are
  // painted. A last column that is aligned to the left is wrapped where it does not fit.
  explicit Table(std::vector<std::string> titles, TableStyle style = {});

  // A cell for every column, whether it is shown or not; cells that are missing are empty.
  void Add(std::initializer_list<absl::AlphaNum> row);
  void Add(std::vector<std::string> row);
  bool empty() const { return rows_.empty(); }
  void Print(std::ostream& out, const std::string& indent = "") const;

 private:
  struct Column {
    std::string title;
    bool right = false;
    bool state = false;
    bool shown = true;
  };
  using Row = std::vector<std::string>;

  std::vector<size_t> Widths() const;
  void PrintRow(std::ostream& out, const std::string& indent, const std::vector<size_t>& widths,
                const Row& row, bool title) const;

  const TableStyle style_;
  std::vector<Column> columns_;  // those that are shown
  std::vector<bool> shown_;      // of all
  std::vector<Row> rows_;        // of the columns that are shown
};

// "Name:   value" per line, values aligned, and wrapped where they do not fit. The value of a name
// that begins with '!' is a state.
void PrintFields(std::ostream& out, const std::vector<std::pair<std::string, std::string>>& fields,
                 const TableStyle& style = {}, const std::string& indent = "");

}  // namespace baton

#endif  // SUPERVISOR_CLI_TABLE_H_
