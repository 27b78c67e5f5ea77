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

// Of a process, by its /proc/PID/cgroup: "/system.slice/batond.service". None: there is no unified
// hierarchy.
std::optional<std::string> GroupOf(std::string_view proc_cgroup);

// The group and those above it, each of which has a say.
std::vector<std::string> Chain(std::string group);

// Of rdma.max or rdma.current, "mlx5_0 hca_handle=2 hca_object=2000": the number of that device;
// none: "max", or it is not there.
std::optional<uint64_t> RdmaValue(std::string_view file, std::string_view device,
                                  std::string_view key);

}  // namespace baton::cgroup

#endif  // SUPERVISOR_CGROUP_CGROUP_H_
