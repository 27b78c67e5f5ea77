// A port in TCP's port space, held for a listener that is none of TCP's: rdma_cm has a port space
// of its own, and lets an RDMA listener and a TCP one have the same port. On a card with iWARP,
// whose connections are TCP's on the wire, they would take each other's.
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

// Claims a port; 0: TCP chooses one. Of several processes that claim a port, at most one gets it.
// kAlreadyExists: it is taken (port_taken.h).
absl::StatusOr<PortClaim> ClaimPort(const Address& address);

}  // namespace baton::verbs::rdma

#endif  // LIB_VERBS_RDMA_PORT_CLAIM_H_
