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

// What is wrong with its files and names, beside the address. Whether the files are there is for
// who opens them to say.
std::vector<FieldProblem> ProblemsOf(const v1::OperatorEndpoint& endpoint);

}  // namespace baton

#endif  // SUPERVISOR_CONFIG_OPERATOR_ENDPOINT_H_
