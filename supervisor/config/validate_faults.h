#ifndef SUPERVISOR_CONFIG_VALIDATE_FAULTS_H_
#define SUPERVISOR_CONFIG_VALIDATE_FAULTS_H_

#include "proto/baton/v1/config.pb.h"
#include "supervisor/config/node.h"

namespace baton {

// Adds a problem for each value of `plan`, whose node is `node`, that is out of its range.
void CheckFaults(v1::FaultPlan& plan, const Node& node);

}  // namespace baton

#endif  // SUPERVISOR_CONFIG_VALIDATE_FAULTS_H_
