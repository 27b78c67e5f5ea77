#include "tests/harness/process_status.h"

#include <filesystem>
#include <fstream>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace baton::harness {

std::vector<pid_t> ChildrenOf(pid_t process) {
  std::vector<pid_t> children;
  std::error_code error;
  const std::string threads = absl::StrCat("/proc/", process, "/task");
  for (const auto& thread : std::filesystem::directory_iterator(threads, error)) {
    std::ifstream file(thread.path() / "children");
    for (pid_t child = 0; file >> child;) children.push_back(child);
  }
  return children;
}

std::string StatusOf(pid_t process, const std::string& field) {
  std::ifstream file(absl::StrCat("/proc/", process, "/status"));
  for (std::string line; std::getline(file, line);) {
    if (!absl::StartsWith(line, field + ":")) continue;
    return std::string(absl::StripAsciiWhitespace(line.substr(field.size() + 1)));
  }
  return "";
}

bool IsGone(pid_t process) {
  const std::string state = StatusOf(process, "State");
  return state.empty() || state[0] == 'Z' || state[0] == 'X';
}

size_t DescriptorsOf(pid_t process) {
  std::error_code error;
  const std::filesystem::directory_iterator open(absl::StrCat("/proc/", process, "/fd"), error);
  return error ? 0 : static_cast<size_t>(std::distance(begin(open), end(open)));
}

pid_t NicOf(pid_t keeper) {
  for (const pid_t child : ChildrenOf(keeper)) {
    if (StatusOf(child, "Name") == "baton-nic") return child;
  }
  return 0;
}

}  // namespace baton::harness
