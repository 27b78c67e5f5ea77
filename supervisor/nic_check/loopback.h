#ifndef SUPERVISOR_NIC_CHECK_LOOPBACK_H_
#define SUPERVISOR_NIC_CHECK_LOOPBACK_H_

#include <infiniband/verbs.h>

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace baton::nic_check {

// Where a port's packets to itself go.
struct LoopbackAddress {
  uint8_t port = 1;
  uint8_t gid_index = 0;
  bool global = false;  // by its gid, else by its lid
  ibv_gid gid = {};
  uint16_t lid = 0;
  ibv_mtu mtu = IBV_MTU_1024;
};

// `gid_index` -1: where gids are needed, the best one there is. That is one of RoCE v2 with an IPv4
// address, or with another that is not link-local, and only then any. kFailedPrecondition: the port
// is not up. kNotFound: there is no such gid.
absl::StatusOr<LoopbackAddress> FindLoopbackAddress(ibv_context* context, uint8_t port,
                                                    int gid_index);

inline constexpr unsigned kAllAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                                       IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

// Takes a queue pair from RESET to READY_TO_SEND, as the peer of queue pair `peer` of the same
// port.
absl::Status ConnectTo(const LoopbackAddress& address, uint32_t peer, ibv_qp* queue_pair);

}  // namespace baton::nic_check

#endif  // SUPERVISOR_NIC_CHECK_LOOPBACK_H_
