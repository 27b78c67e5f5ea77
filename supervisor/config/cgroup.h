// Control groups of the unified hierarchy, as the kernel's files show them.
#ifndef SUPERVISOR_CONFIG_CGROUP_H_
#define SUPERVISOR_CONFIG_CGROUP_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "lib/base/status.h"

namespace baton::cgroup {

inline constexpr char kRoot[] = "/sys/fs/cgroup";

// Returns a process's group from its /proc/PID/cgroup: "/system.slice/batond.service". Returns
// nothing if there is no unified hierarchy.
inline std::optional<std::string> GroupOf(std::string_view proc_cgroup) {
  for (absl::string_view line : absl::StrSplit(View(proc_cgroup), '\n')) {
    if (absl::ConsumePrefix(&line, "0::")) return std::string(line);
  }
  return std::nullopt;
}

// Returns the group and the groups above it, without the root. Each may set limits.
inline std::vector<std::string> Chain(std::string group) {
  std::vector<std::string> chain;
  while (group.size() > 1) {
    chain.push_back(group);
    group = group.substr(0, group.rfind('/'));
  }
  return chain;
}

// Returns the number of `key` for `device` in rdma.max or rdma.current, which have lines like
// "mlx5_0 hca_handle=2 hca_object=2000". Returns nothing if it is "max" or missing.
inline std::optional<uint64_t> RdmaValue(std::string_view file, std::string_view device,
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

#endif  // SUPERVISOR_CONFIG_CGROUP_H_
