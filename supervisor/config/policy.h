// Validates configurations and policies, also the policy of a running service.
#ifndef SUPERVISOR_CONFIG_POLICY_H_
#define SUPERVISOR_CONFIG_POLICY_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "google/protobuf/text_format.h"
#include "proto/baton/v1/config.pb.h"
#include "supervisor/config/node.h"

namespace baton {

// Fills in the defaults, as LoadConfig does, and checks each value against its range and the
// capacity of `service`, which must be complete. kInvalidArgument: the message names every wrong
// field, one a line: "policy.service.connections: 65 is more than max_connections, 64".
absl::Status CompletePolicy(v1::Policy& policy, const v1::ServiceConfig& service);

// Parse a policy in text format, and neither complete nor validate it. kInvalidArgument: it cannot
// be parsed; the message is like LoadConfig's.
absl::StatusOr<v1::Policy> LoadPolicy(const std::string& path);
absl::StatusOr<v1::Policy> ParsePolicy(std::string_view text, std::string_view file_name);

// Fills in the defaults of `policy`, whose node is `node`, and adds a problem for each value that
// is out of range or more than `service` has, which must be complete.
void CheckPolicy(v1::Policy& policy, const v1::ServiceConfig& service, const Node& node);

// Fills in the defaults of `config` and adds to `problems` every value that is out of its range.
// `places` says where in the file a field is; null: there is no file.
void CompleteAndValidate(v1::Config& config, google::protobuf::TextFormat::ParseInfoTree* places,
                         Problems& problems);

}  // namespace baton

#endif  // SUPERVISOR_CONFIG_POLICY_H_
