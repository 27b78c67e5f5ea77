// The status of a Listen at a port that another has.
#ifndef LIB_VERBS_PORT_TAKEN_H_
#define LIB_VERBS_PORT_TAKEN_H_

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "lib/verbs/verbs.h"

namespace baton::verbs {

enum class PortSpace : uint8_t { kTcp, kRdma };

struct TakenPort {
  PortSpace space = PortSpace::kTcp;  // in which it is taken
  Address address;                    // that was asked for
};

// kAlreadyExists. Says nothing of the owner, whom to look for takes time: port_owner.h.
absl::Status PortTakenError(const TakenPort& port);
// Of port 0. kResourceExhausted.
absl::Status NoPortFreeError(const Address& address);
// What a status of PortTakenError is about; nothing for any other.
std::optional<TakenPort> TakenPortOf(const absl::Status& status);

}  // namespace baton::verbs

#endif  // LIB_VERBS_PORT_TAKEN_H_
