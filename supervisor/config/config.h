// The configuration file of batond: proto/baton/v1/config.proto in protobuf text format.
#ifndef SUPERVISOR_CONFIG_CONFIG_H_
#define SUPERVISOR_CONFIG_CONFIG_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "google/protobuf/message.h"
#include "proto/baton/v1/config.pb.h"

namespace baton {

// Return a complete configuration: parsed, with defaults, and with every value in its range.
//
// kInvalidArgument: the message has all problems, one per line: "FILE:LINE:COLUMN:
// services[1].send_queue_depth: 48 is not a power of two; use 32 or 64".
absl::StatusOr<v1::Config> LoadConfig(const std::string& path);
absl::StatusOr<v1::Config> ParseConfig(std::string_view text, std::string_view file_name);

// The same for a configuration that comes from no file; problems have no place then.
absl::Status CompleteConfig(v1::Config& config);

// Parses protobuf text format into `message`. Checks no values.
//
// kInvalidArgument: the message has all problems, one per line: "`what`:LINE:COLUMN: ...".
absl::Status ParseText(std::string_view text, std::string_view what,
                       google::protobuf::Message* message);

}  // namespace baton

#endif  // SUPERVISOR_CONFIG_CONFIG_H_
