#ifndef SUPERVISOR_CONFIG_PROBLEMS_H_
#define SUPERVISOR_CONFIG_PROBLEMS_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace baton {

// Everything that is wrong with one configuration, each with its place in the file, so that a user
// mends it in one go.
class Problems {
 public:
  // `file_name` is empty for a configuration that comes from no file.
  explicit Problems(std::string file_name) : file_name_(std::move(file_name)) {}

  // `line` and `column` count from 1; 0 for no place.
  void AddAt(int line, int column, std::string_view text);

  // kInvalidArgument with one line per problem, or OK when there is none.
  absl::Status ToStatus() const;

 private:
  std::string file_name_;
  std::vector<std::string> lines_;
};

}  // namespace baton

#endif  // SUPERVISOR_CONFIG_PROBLEMS_H_
