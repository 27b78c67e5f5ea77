// The rdma device: libibverbs with any provider, and the kernel's connection manager (cm_file.h).
//
// Queue pairs are made before their connections (ibv_create_qp) and joined to them by number, so
// that one made before a fork can be used after it. iWARP cannot do that, and is refused.
//
// After kDeviceLost the device must be destroyed, or the process must end. The kernel does not
// finish the removal of an open device, unless the device's driver supports that.
#ifndef LIB_VERBS_RDMA_RDMA_DEVICE_H_
#define LIB_VERBS_RDMA_RDMA_DEVICE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/verbs/verbs.h"

namespace baton::verbs::rdma {

struct RdmaDeviceOptions {
  std::string device;  // "rxe0"; empty: the only one that there is
  uint8_t port = 1;    // physical, of the device
  // The GID of the port that connections use. rdma_cm chooses GIDs by IP address, so this chooses
  // the address. The host of a listener must be the GID's address or a wildcard, and outgoing
  // connections come from that address. Without gid_index, each connection uses the GID of its
  // address.
  std::optional<uint8_t> gid_index;
  // True: this process is in another network namespace than the machine's first.
  // kFailedPrecondition: the device has no connections there.
  bool in_network_namespace = false;
  uint32_t resolve_timeout_ms = 2000;  // of an address, and of a route
  // The time from Connect() to the peer's answer, after which the peer is unreachable. A busy peer
  // reports only to the kernel that it needs more time, so this also limits the time that a service
  // has to accept.
  uint32_t connect_timeout_ms = 30'000;
};

std::vector<std::string> ListRdmaDevices();

// kNotFound names the devices, or the GIDs, that there are. kFailedPrecondition: the device cannot
// do what Baton needs, or we may not use it; the message says what to do.
absl::StatusOr<std::unique_ptr<Device>> CreateRdmaDevice(const RdmaDeviceOptions& options);

// See Device::Describe. REQUIRES: `described` is of an rdma device of this process.
absl::StatusOr<std::unique_ptr<Device>> InheritRdmaDevice(const BatonInheritedDevice& described);

}  // namespace baton::verbs::rdma

#endif  // LIB_VERBS_RDMA_RDMA_DEVICE_H_
