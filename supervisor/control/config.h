#ifndef SUPERVISOR_CONTROL_CONFIG_H_
#define SUPERVISOR_CONTROL_CONFIG_H_

#include <string>

#include "absl/status/statusor.h"
#include "proto/baton/internal/keeper.pb.h"

namespace baton {

// Parses and checks what control reads on standard input.
absl::StatusOr<internal::ControlConfig> ParseControlConfig(const std::string& text);

std::string OperatorSocket(const std::string& state_dir);
std::string WorkerSocket(const std::string& state_dir);  // of the gRPC service for workers
std::string KeeperSocket(const std::string& state_dir, const std::string& service);

}  // namespace baton

#endif  // SUPERVISOR_CONTROL_CONFIG_H_
