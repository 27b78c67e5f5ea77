// The RDMA devices of a machine, as sysfs describes them
// (Documentation/ABI/stable/sysfs-class-infiniband in the kernel's sources).
#ifndef SUPERVISOR_DOCTOR_RDMA_DEVICES_H_
#define SUPERVISOR_DOCTOR_RDMA_DEVICES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "supervisor/doctor/machine.h"

namespace baton::doctor {

struct Gid {
  uint32_t index = 0;
  std::string address;  // in inet_ntop's form; IPv4-mapped ones as IPv4 addresses
  std::string type;     // "RoCE v2", "IB/RoCE v1"
  bool link_local = false;
};

struct Port {
  uint32_t number = 0;
  std::string state;           // "ACTIVE"
  std::string physical_state;  // "LinkUp"
  bool ethernet = false;       // RoCE, or iWARP; InfiniBand otherwise
  std::string interface;       // its net device; empty: not known
  std::vector<Gid> gids;
};

struct RdmaDevice {
  std::string name;
  std::string node_type;    // "CA", "RNIC"
  std::string node;         // "uverbs0"; empty: it has none
  std::string node_number;  // "231:192"
  std::vector<Port> ports;

  bool iwarp() const { return node_type == "RNIC"; }
  const Port* FindPort(uint32_t number) const;
};

std::vector<RdmaDevice> ReadRdmaDevices(const Machine& machine);

}  // namespace baton::doctor

#endif  // SUPERVISOR_DOCTOR_RDMA_DEVICES_H_
