#ifndef SUPERVISOR_CONFIG_OPERATOR_ENDPOINT_H_
#define SUPERVISOR_CONFIG_OPERATOR_ENDPOINT_H_

#include <string>
#include <vector>

#include "proto/baton/v1/config.pb.h"

namespace baton {

struct FieldProblem {
  std::string field;
  std::string text;
};

// Returns the problems of the endpoint's files and names, but not of its address. Opens no file:
// opening reports a missing one.
std::vector<FieldProblem> ProblemsOf(const v1::OperatorEndpoint& endpoint);

}  // namespace baton

#endif  // SUPERVISOR_CONFIG_OPERATOR_ENDPOINT_H_
