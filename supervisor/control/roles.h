// Decides who may call which method of the operator service. Viewers may call the methods of one
// table, which only read. All other methods are for operators.
#ifndef SUPERVISOR_CONTROL_ROLES_H_
#define SUPERVISOR_CONTROL_ROLES_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "proto/baton/internal/keeper.pb.h"
#include "supervisor/control/peers.h"

namespace baton {

enum class Role : uint8_t { kNone, kViewer, kOperator };

// Returns the role of a peer of the operator socket.
Role RoleOf(const internal::ControlConfig& config, const Peer& peer);

// The role of a caller by the names in its certificate.
struct NamedRole {
  Role role = Role::kNone;
  std::string name;  // the name that gave the role; without a role the first name
};
NamedRole RoleOfNames(const v1::OperatorEndpoint& endpoint, const std::vector<std::string>& names);

// `method` in gRPC's form: "/baton.v1.OperatorService/Handoff".
bool MayCall(Role role, std::string_view method);

// Return why the caller may not call `method`, and the cure.
std::string RefusalOfPeer(Role role, const Peer& peer, std::string_view method);
std::string RefusalOfName(Role role, std::string_view who, std::string_view method);

}  // namespace baton

#endif  // SUPERVISOR_CONTROL_ROLES_H_
