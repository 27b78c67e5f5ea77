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

// Held until `socket` is closed, in every process that has it. TCP's answer to who connects there
// is that nobody listens.
struct PortClaim {
  FileDescriptor socket;
  uint16_t port = 0;
};

// Port 0: one that TCP chooses. Of all who ask at once for a port, at most one gets it.
// kAlreadyExists: it is taken (port_taken.h).
absl::StatusOr<PortClaim> ClaimPort(const Address& address);

}  // namespace baton::verbs::rdma

#endif  // LIB_VERBS_RDMA_PORT_CLAIM_H_
