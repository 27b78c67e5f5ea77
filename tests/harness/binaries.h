// Finds the programs of this tree, and replaces those that run.
#ifndef TESTS_HARNESS_BINARIES_H_
#define TESTS_HARNESS_BINARIES_H_

#include <filesystem>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace baton::harness {

class Binaries {
 public:
  // Looks in `directory` (may be empty), then $BATON_BIN, then this program's runfiles, then beside
  // it, then in the Bazel output tree that it lies in.
  explicit Binaries(const std::string& directory = {});

  // Path of the program called `name`, for example "batond".
  absl::StatusOr<std::string> Find(const std::string& name) const;

 private:
  std::vector<std::string> roots_;
};

// Puts another file in the place of the one that may run, as a package does.
void InstallProgram(const std::filesystem::path& path, const std::string& program);

// Returns `program`, of Baton's, with another release, as long as ours. Empty: it has none.
std::string WithRelease(std::string program, const std::string& release);

}  // namespace baton::harness

#endif  // TESTS_HARNESS_BINARIES_H_
