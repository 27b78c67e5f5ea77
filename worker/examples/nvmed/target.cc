#include "worker/examples/nvmed/target.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "lib/base/status.h"
#include "worker/examples/nvmed/configuration.h"

namespace baton::nvmed {
namespace {

// FNV-1a.
class Hasher {
 public:
  void Add(std::string_view text) {
    for (const char letter : text) value_ = (value_ ^ static_cast<uint8_t>(letter)) * kPrime;
    value_ *= kPrime;  // marks the end of the text
  }
  void Add(uint64_t number) {
    for (int i = 0; i < 8; ++i) value_ = (value_ ^ (number >> (8 * i) & 0xff)) * kPrime;
  }
  uint64_t value() const { return value_; }

 private:
  static constexpr uint64_t kPrime = 0x100000001b3;
  uint64_t value_ = 0xcbf29ce484222325;
};

// Makes a UUID of version 8 (RFC 9562), the same on every machine for the same names.
std::array<uint8_t, 16> MakeUuid(const std::string& nqn, uint32_t id) {
  Hasher low, high;
  low.Add(nqn);
  low.Add(id);
  high.Add(id);
  high.Add(nqn);
  std::array<uint8_t, 16> uuid;
  const uint64_t halves[2] = {low.value(), high.value()};
  std::memcpy(uuid.data(), halves, uuid.size());
  uuid[6] = static_cast<uint8_t>((uuid[6] & 0x0f) | 0x80);
  uuid[8] = static_cast<uint8_t>((uuid[8] & 0x3f) | 0x80);
  return uuid;
}

absl::StatusOr<std::unique_ptr<Backing>> OpenBacking(const NamespaceConfig& config, uint64_t memory,
                                                     absl::Span<uint8_t> buffers) {
  if (config.has_memory()) {
    return MakeMemoryBacking(buffers.subspan(memory, config.memory().bytes()));
  }
  FileOptions options;
  options.path = config.file().path();
  options.direct = config.file().direct();
  options.read_only = config.file().read_only();
  options.prompt = config.file().prompt();
  options.block_bytes = config.block_bytes();
  return OpenFile(options);
}

absl::StatusOr<Namespace> OpenNamespace(const std::string& nqn, const NamespaceConfig& config,
                                        uint64_t memory, absl::Span<uint8_t> buffers) {
  Namespace one;
  one.id = config.id();
  one.block_shift = static_cast<uint32_t>(std::countr_zero(config.block_bytes()));
  one.uuid = MakeUuid(nqn, config.id());
  if (!config.uuid().empty()) {
    BATON_ASSIGN_OR_RETURN(one.uuid, ParseUuid(config.uuid()));
  }
  BATON_ASSIGN_OR_RETURN(one.backing, OpenBacking(config, memory, buffers));
  one.blocks = one.backing->bytes() >> one.block_shift;
  return one;
}

}  // namespace

Namespace* Subsystem::Find(uint32_t id) {
  for (Namespace& one : namespaces) {
    if (one.id == id) return &one;
  }
  return nullptr;
}

bool Subsystem::Admits(std::string_view host_nqn) const {
  return hosts.empty() || std::find(hosts.begin(), hosts.end(), host_nqn) != hosts.end();
}

absl::StatusOr<Target> Target::Open(const TargetConfig& config, const BufferPlan& plan,
                                    absl::Span<uint8_t> buffers) {
  Target target;
  std::string problems;
  uint32_t index = 0;
  for (int i = 0; i < config.subsystems_size(); ++i) {
    const SubsystemConfig& from = config.subsystems(i);
    Subsystem subsystem{from.nqn(), from.serial(), from.model(), {}, {}};
    subsystem.hosts.assign(from.hosts().begin(), from.hosts().end());
    for (int j = 0; j < from.namespaces_size(); ++j) {
      absl::StatusOr<Namespace> one =
          OpenNamespace(from.nqn(), from.namespaces(j), plan.Memory(i, j), buffers);
      if (one.ok()) {
        one->index = index++;
        subsystem.namespaces.push_back(*std::move(one));
      } else {
        absl::StrAppend(&problems, problems.empty() ? "" : "; ", "subsystems[", i, "].namespaces[",
                        j, "]: ", one.status().message());
      }
    }
    std::sort(subsystem.namespaces.begin(), subsystem.namespaces.end(),
              [](const Namespace& a, const Namespace& b) { return a.id < b.id; });
    target.subsystems_.push_back(std::move(subsystem));
  }
  if (!problems.empty()) return absl::InvalidArgumentError(problems);
  return target;
}

Subsystem* Target::Find(std::string_view nqn) {
  for (Subsystem& subsystem : subsystems_) {
    if (subsystem.nqn == nqn) return &subsystem;
  }
  return nullptr;
}

uint64_t Target::Hash() const {
  Hasher hasher;
  for (const Subsystem& subsystem : subsystems_) {
    hasher.Add(subsystem.nqn);
    for (const Namespace& one : subsystem.namespaces) {
      hasher.Add(one.id);
      hasher.Add(one.block_shift);
      hasher.Add(one.blocks);
      hasher.Add(std::string_view(reinterpret_cast<const char*>(one.uuid.data()), 16));
    }
  }
  return hasher.value();
}

}  // namespace baton::nvmed
