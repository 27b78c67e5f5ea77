#ifndef SUPERVISOR_CONFIG_VALIDATE_POLICY_H_
#define SUPERVISOR_CONFIG_VALIDATE_POLICY_H_

#include "proto/baton/v1/config.pb.h"
#include "supervisor/config/node.h"

namespace baton {

// Fills in the defaults of `policy`, which `node` names, and refuses what is out of range or more
// than `service`, complete, has.
void CheckPolicy(v1::Policy& policy, const v1::ServiceConfig& service, const Node& node);

}  // namespace baton

#endif  // SUPERVISOR_CONFIG_VALIDATE_POLICY_H_
