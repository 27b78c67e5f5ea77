#include "supervisor/cgroup/cgroup.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "lib/base/status_text.h"

namespace baton::cgroup {

std::optional<std::string> GroupOf(std::string_view proc_cgroup) {
  for (absl::string_view line : absl::StrSplit(View(proc_cgroup), '\n')) {
    if (absl::ConsumePrefix(&line, "0::")) return std::string(line);
  }
  return std::nullopt;
}

std::vector<std::string> Chain(std::string group) {
  std::vector<std::string> chain;
  while (group.size() > 1) {
    chain.push_back(group);
    group = group.substr(0, group.rfind('/'));
  }
  return chain;
}

std::optional<uint64_t> RdmaValue(std::string_view file, std::string_view device,
                                  std::string_view key) {
  for (const absl::string_view line : absl::StrSplit(View(file), '\n')) {
    const std::vector<absl::string_view> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    if (words.empty() || words[0] != View(device)) continue;
    for (const absl::string_view word : words) {
      uint64_t value = 0;
      const std::pair<absl::string_view, absl::string_view> parts =
          absl::StrSplit(word, absl::MaxSplits('=', 1));
      if (parts.first == View(key) && absl::SimpleAtoi(parts.second, &value)) return value;
    }
  }
  return std::nullopt;
}

}  // namespace baton::cgroup
