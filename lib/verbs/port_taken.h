// The status of a Listen() at a port that is taken.
#ifndef LIB_VERBS_PORT_TAKEN_H_
#define LIB_VERBS_PORT_TAKEN_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "lib/verbs/verbs.h"

namespace baton::verbs {

enum class PortSpace : uint8_t { kTcp, kRdma };

struct TakenPort {
  PortSpace space = PortSpace::kTcp;  // the space in which the port is taken
  Address address;                    // as requested
};

// Returns kAlreadyExists. The message does not name the owner, because finding it takes time; see
// port_owner.h.
absl::Status PortTakenError(const TakenPort& port);
// Returns kResourceExhausted, for a request of port 0 that found no free port.
absl::Status NoPortFreeError(const Address& address);
// Returns the status of a bind(2) or listen(2) of TCP that failed with `error`. EADDRINUSE gives
// one of the two above. Any other error gives its own status, which says `what` was tried.
absl::Status TcpBindError(int error, const Address& address, const std::string& what);
// Returns the port of a PortTakenError, or nullopt for any other status.
std::optional<TakenPort> TakenPortOf(const absl::Status& status);

}  // namespace baton::verbs

#endif  // LIB_VERBS_PORT_TAKEN_H_
