// Holds a port in TCP's port space for an RDMA listener. rdma_cm has its own port space, so an RDMA
// listener and a TCP listener can have the same port. On an iWARP card, whose connections are TCP
// on the wire, they would take each other's connections.
#ifndef LIB_VERBS_RDMA_PORT_CLAIM_H_
#define LIB_VERBS_RDMA_PORT_CLAIM_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"
#include "lib/verbs/verbs.h"

namespace baton::verbs::rdma {

// Held until every process that has `socket` has closed it. TCP refuses connections to the port.
struct PortClaim {
  FileDescriptor socket;
  uint16_t port = 0;
};

// Claims a port; 0: TCP chooses one. If several processes claim a port, at most one gets it.
// kAlreadyExists: it is taken (port_taken.h).
absl::StatusOr<PortClaim> ClaimPort(const Address& address);

}  // namespace baton::verbs::rdma

#endif  // LIB_VERBS_RDMA_PORT_CLAIM_H_
