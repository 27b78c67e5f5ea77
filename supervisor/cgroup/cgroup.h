// Control groups of the unified hierarchy, as the kernel's files show them.
#ifndef SUPERVISOR_CGROUP_CGROUP_H_
#define SUPERVISOR_CGROUP_CGROUP_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace baton::cgroup {

inline constexpr char kRoot[] = "/sys/fs/cgroup";

// Returns a process's group from its /proc/PID/cgroup: "/system.slice/batond.service". Returns
// nothing if there is no unified hierarchy.
std::optional<std::string> GroupOf(std::string_view proc_cgroup);

// Returns the group and the groups above it, without the root. Each may set limits.
std::vector<std::string> Chain(std::string group);

// Returns the number of `key` for `device` in rdma.max or rdma.current, which have lines like
// "mlx5_0 hca_handle=2 hca_object=2000". Returns nothing if it is "max" or missing.
std::optional<uint64_t> RdmaValue(std::string_view file, std::string_view device,
                                  std::string_view key);

}  // namespace baton::cgroup

#endif  // SUPERVISOR_CGROUP_CGROUP_H_
