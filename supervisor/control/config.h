#ifndef SUPERVISOR_CONTROL_CONFIG_H_
#define SUPERVISOR_CONTROL_CONFIG_H_

#include <string>

#include "absl/status/statusor.h"
#include "proto/baton/internal/keeper.pb.h"
#include "supervisor/config/state_files.h"  // what it names is what callers open

namespace baton {

// Parses and checks what control reads on standard input.
absl::StatusOr<internal::ControlConfig> ParseControlConfig(const std::string& text);

}  // namespace baton

#endif  // SUPERVISOR_CONTROL_CONFIG_H_
