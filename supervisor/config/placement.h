#ifndef SUPERVISOR_CONFIG_PLACEMENT_H_
#define SUPERVISOR_CONFIG_PLACEMENT_H_

#include <functional>
#include <optional>
#include <string>

#include "proto/baton/v1/config.pb.h"

namespace baton {

// Returns the contents of a small file of the kernel, if it can be read.
using ReadFileFunction = std::function<std::optional<std::string>(const std::string& path)>;
std::optional<std::string> ReadSystemFile(const std::string& path);

// Returns the NUMA node of an RDMA device; none on a machine with one node, or if the kernel knows
// none.
std::optional<uint32_t> NodeOfDevice(const std::string& device, const ReadFileFunction& read);

// Returns where a service should run: as configured, otherwise on the node of its RDMA device and
// that node's CPUs. Fields that neither decides stay unset. `device`: its name; empty: the service
// has none.
v1::Placement PlacementOf(const v1::Placement& configured, const std::string& device,
                          const ReadFileFunction& read = ReadSystemFile);

// Returns "CPUs 4-7, memory of NUMA node 1"; empty: nothing is set.
std::string DescribePlacement(const v1::Placement& placement);

}  // namespace baton

#endif  // SUPERVISOR_CONFIG_PLACEMENT_H_
