// Aligned text: tables with a header, and lists of names with values.
#ifndef SUPERVISOR_CLI_TABLE_H_
#define SUPERVISOR_CLI_TABLE_H_

#include <ostream>
#include <string>
#include <utility>
#include <vector>

namespace baton {

class Table {
 public:
  // A title that begins with '>' aligns its column to the right, as numbers are.
  explicit Table(std::vector<std::string> titles);

  void Add(std::vector<std::string> row);
  bool empty() const { return rows_.empty(); }
  void Print(std::ostream& out, const std::string& indent = "") const;

 private:
  std::vector<bool> right_;
  std::vector<std::string> titles_;
  std::vector<std::vector<std::string>> rows_;
};

// "Name:   value" per line, values aligned.
void PrintFields(std::ostream& out, const std::vector<std::pair<std::string, std::string>>& fields,
                 const std::string& indent = "");

}  // namespace baton

#endif  // SUPERVISOR_CLI_TABLE_H_
