// Aligned text: tables with a header, and lists of names with values.
#ifndef SUPERVISOR_CLI_TABLE_H_
#define SUPERVISOR_CLI_TABLE_H_

#include <ostream>
#include <string>
#include <utility>
#include <vector>

namespace baton {

struct TableStyle {
  bool wide = false;  // with the columns that not everybody wants to see
  bool headers = true;
};

class Table {
 public:
  // A title that begins with '+' is of a column that only wide tables have; then, one that begins
  // with '>' aligns its column to the right, as numbers are.
  explicit Table(std::vector<std::string> titles, TableStyle style = {});

  // A cell for every column, whether it is shown or not; cells that are missing are empty.
  void Add(std::vector<std::string> row);
  bool empty() const { return rows_.empty(); }
  void Print(std::ostream& out, const std::string& indent = "") const;

 private:
  struct Column {
    std::string title;
    bool right = false;
    bool shown = true;
  };

  const TableStyle style_;
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;  // of the columns that are shown
};

// "Name:   value" per line, values aligned.
void PrintFields(std::ostream& out, const std::vector<std::pair<std::string, std::string>>& fields,
                 const std::string& indent = "");

}  // namespace baton

#endif  // SUPERVISOR_CLI_TABLE_H_
