// A target's subsystems with their opened namespaces.
#ifndef WORKER_EXAMPLES_NVMED_TARGET_H_
#define WORKER_EXAMPLES_NVMED_TARGET_H_

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/examples/nvmed/backing.h"
#include "worker/examples/nvmed/buffer_plan.h"
#include "worker/examples/nvmed/target_config.pb.h"

namespace baton::nvmed {

struct Namespace {
  uint32_t id = 0;
  uint32_t block_shift = 9;
  uint64_t blocks = 0;
  std::array<uint8_t, 16> uuid = {};
  uint32_t index = 0;  // among all namespaces of the target
  std::unique_ptr<Backing> backing;
};

struct Subsystem {
  std::string nqn, serial, model;
  std::vector<std::string> hosts;     // hosts that may connect; empty: all
  std::vector<Namespace> namespaces;  // by id

  Namespace* Find(uint32_t id);
  bool Admits(std::string_view host_nqn) const;
};

class Target {
 public:
  // `buffers` are the service's, and must outlive the target. An error names all namespaces whose
  // backing cannot be opened.
  static absl::StatusOr<Target> Open(const TargetConfig& config, const BufferPlan& plan,
                                     absl::Span<uint8_t> buffers);

  Subsystem* Find(std::string_view nqn);
  std::vector<Subsystem>& subsystems() { return subsystems_; }
  const std::vector<Subsystem>& subsystems() const { return subsystems_; }
  // Returns a hash of the namespaces as hosts see them: their ids, sizes and names.
  uint64_t Hash() const;

 private:
  std::vector<Subsystem> subsystems_;
};

// nvmed's configuration file: target_config.proto, checked and completed.
//
// Every error names the field, or where in the text the parser stopped. `name`: the text's, for
// errors.
absl::StatusOr<TargetConfig> ParseConfiguration(const std::string& text, std::string_view name);
absl::StatusOr<TargetConfig> ReadConfiguration(const std::string& path);

// 32 hexadecimal digits, with dashes anywhere; not all of them 0, which means no identifier to
// hosts.
absl::StatusOr<std::array<uint8_t, 16>> ParseUuid(const std::string& text);

}  // namespace baton::nvmed

#endif  // WORKER_EXAMPLES_NVMED_TARGET_H_
