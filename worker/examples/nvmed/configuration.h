// nvmed's configuration file: target_config.proto, checked and completed.
#ifndef WORKER_EXAMPLES_NVMED_CONFIGURATION_H_
#define WORKER_EXAMPLES_NVMED_CONFIGURATION_H_

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/examples/nvmed/target_config.pb.h"

namespace baton::nvmed {

// Every error names the field, or where in the text the parser stopped. `name`: the text's, for
// errors.
absl::StatusOr<TargetConfig> ParseConfiguration(const std::string& text, std::string_view name);
absl::StatusOr<TargetConfig> ReadConfiguration(const std::string& path);

// 32 hexadecimal digits, with dashes anywhere; not all of them 0, which means no identifier to
// hosts.
absl::StatusOr<std::array<uint8_t, 16>> ParseUuid(const std::string& text);

}  // namespace baton::nvmed

#endif  // WORKER_EXAMPLES_NVMED_CONFIGURATION_H_
