#include "worker/examples/nvmed/target.h"

#include <errno.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <fstream>
#include <set>

#include "absl/strings/str_cat.h"
#include "google/protobuf/io/tokenizer.h"
#include "google/protobuf/text_format.h"
#include "lib/base/status.h"
#include "worker/examples/nvmed/buffer_plan.h"
#include "worker/examples/nvmed/nvme_data.h"
#include "worker/examples/nvmed/nvme_spec.h"
#include "worker/examples/nvmed/state.h"

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

constexpr uint32_t kDefaultQueueEntries = 128;
constexpr uint32_t kDefaultMaxTransferBytes = 128 * 1024;
constexpr uint32_t kMaxMaxTransferBytes = 16 * 1024 * 1024;
constexpr uint32_t kDefaultInCapsuleBytes = 4096;
constexpr uint32_t kMaxInCapsuleBytes = 32768;
constexpr uint32_t kDefaultIoThreads = 16, kMaxIoThreads = 256;
constexpr uint32_t kDefaultHostTimeoutMs = 30'000, kMaxHostTimeoutMs = 600'000;
constexpr uint32_t kDefaultBlockBytes = 512;
constexpr size_t kMaxSubsystems = 64;

// Keeps the first error.
class FirstError final : public google::protobuf::io::ErrorCollector {
 public:
  void AddError(int line, google::protobuf::io::ColumnNumber column,
                const std::string& message) override {
    if (text_.empty()) text_ = absl::StrCat(line + 1, ":", column + 1, ": ", message);
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

absl::Status RefuseSetting(const std::string& field, const std::string& why) {
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", why));
}

bool IsPrintable(const std::string& text) {
  for (const char letter : text) {
    if (letter < 0x20 || letter > 0x7e) return false;
  }
  return true;
}

// Checks the form that the NVMe Base Specification prescribes (NVMe Qualified Names).
absl::Status CheckNqn(const std::string& field, const std::string& nqn) {
  if (nqn.size() < 12 || nqn.size() >= kNqnBytes || nqn.compare(0, 4, "nqn.") != 0 ||
      !IsPrintable(nqn)) {
    return RefuseSetting(field,
                         absl::StrCat("\"", nqn, "\" is no NQN: nqn.YYYY-MM.DOMAIN:NAME, at most ",
                                      kNqnBytes - 1, " characters"));
  }
  return absl::OkStatus();
}

int DigitOf(char letter) {
  if (letter >= '0' && letter <= '9') return letter - '0';
  if (letter >= 'a' && letter <= 'f') return letter - 'a' + 10;
  if (letter >= 'A' && letter <= 'F') return letter - 'A' + 10;
  return -1;
}

absl::Status CheckNamespace(const std::string& field, NamespaceConfig& config) {
  if (config.id() == 0 || config.id() > kMaxNamespaceId) {
    return RefuseSetting(field + ".id",
                         absl::StrCat(config.id(), ": choose 1 to ", kMaxNamespaceId));
  }
  if (config.block_bytes() == 0) config.set_block_bytes(kDefaultBlockBytes);
  if (!std::has_single_bit(config.block_bytes()) || config.block_bytes() < 512 ||
      config.block_bytes() > kPageBytes) {
    return RefuseSetting(field + ".block_bytes",
                         absl::StrCat(config.block_bytes(), ": choose 512, 1024, 2048 or 4096"));
  }
  if (!config.uuid().empty()) {
    const absl::Status status = ParseUuid(config.uuid()).status();
    if (!status.ok()) return RefuseSetting(field + ".uuid", std::string(status.message()));
  }
  switch (config.backing_case()) {
    case NamespaceConfig::kFile:
      if (config.file().path().empty() || config.file().path()[0] != '/') {
        return RefuseSetting(field + ".file.path",
                             absl::StrCat("\"", config.file().path(), "\": an absolute path"));
      }
      return absl::OkStatus();
    case NamespaceConfig::kMemory:
      if (config.memory().bytes() == 0 || config.memory().bytes() % kPageBytes != 0) {
        return RefuseSetting(field + ".memory.bytes",
                             absl::StrCat(config.memory().bytes(), ": a multiple of ", kPageBytes));
      }
      return absl::OkStatus();
    case NamespaceConfig::BACKING_NOT_SET:
      break;
  }
  return RefuseSetting(field, "neither file nor memory: say where its blocks are");
}

absl::Status CheckSubsystem(const std::string& field, SubsystemConfig& config) {
  BATON_RETURN_IF_ERROR(CheckNqn(field + ".nqn", config.nqn()));
  if (config.nqn() == kDiscoveryNqn) {
    return RefuseSetting(field + ".nqn", "discovery is there by itself: choose another name");
  }
  if (config.serial().empty() || config.serial().size() > kSerialBytes ||
      !IsPrintable(config.serial())) {
    return RefuseSetting(field + ".serial", absl::StrCat("\"", config.serial(), "\": 1 to ",
                                                         kSerialBytes, " printable characters"));
  }
  if (config.model().empty()) config.set_model("Baton nvmed");
  if (config.model().size() > kModelBytes || !IsPrintable(config.model())) {
    return RefuseSetting(field + ".model", absl::StrCat("\"", config.model(), "\": at most ",
                                                        kModelBytes, " printable characters"));
  }
  std::set<uint32_t> ids;
  for (int i = 0; i < config.namespaces_size(); ++i) {
    const std::string name = absl::StrCat(field, ".namespaces[", i, "]");
    BATON_RETURN_IF_ERROR(CheckNamespace(name, *config.mutable_namespaces(i)));
    if (!ids.insert(config.namespaces(i).id()).second) {
      return RefuseSetting(name + ".id",
                           absl::StrCat(config.namespaces(i).id(), " is there twice"));
    }
  }
  for (int i = 0; i < config.hosts_size(); ++i) {
    BATON_RETURN_IF_ERROR(CheckNqn(absl::StrCat(field, ".hosts[", i, "]"), config.hosts(i)));
  }
  return absl::OkStatus();
}

absl::Status CheckQueues(TargetConfig& config) {
  if (config.queue_entries() == 0) config.set_queue_entries(kDefaultQueueEntries);
  if (!std::has_single_bit(config.queue_entries()) || config.queue_entries() < 32 ||
      config.queue_entries() > kMaxQueueEntries) {
    // Linux's admin queue has 32 entries.
    return RefuseSetting("queue_entries",
                         absl::StrCat(config.queue_entries(), ": choose a power of two from 32 to ",
                                      kMaxQueueEntries));
  }
  if (config.io_queues() == 0) config.set_io_queues(kMaxIoQueues);
  if (config.io_queues() > kMaxIoQueues) {
    return RefuseSetting("io_queues", absl::StrCat(config.io_queues(), ": at most ", kMaxIoQueues));
  }
  if (config.max_transfer_bytes() == 0) config.set_max_transfer_bytes(kDefaultMaxTransferBytes);
  if (!std::has_single_bit(config.max_transfer_bytes()) ||
      config.max_transfer_bytes() < 2 * kPageBytes ||
      config.max_transfer_bytes() > kMaxMaxTransferBytes) {
    return RefuseSetting("max_transfer_bytes",
                         absl::StrCat(config.max_transfer_bytes(), ": choose a power of two from ",
                                      2 * kPageBytes, " to ", kMaxMaxTransferBytes));
  }
  if (config.in_capsule_bytes() == 0) config.set_in_capsule_bytes(kDefaultInCapsuleBytes);
  if (config.in_capsule_bytes() % kPageBytes != 0 ||
      config.in_capsule_bytes() > kMaxInCapsuleBytes) {
    return RefuseSetting("in_capsule_bytes",
                         absl::StrCat(config.in_capsule_bytes(), ": choose a multiple of ",
                                      kPageBytes, ", at most ", kMaxInCapsuleBytes));
  }
  if (config.io_threads() == 0) config.set_io_threads(kDefaultIoThreads);
  if (config.io_threads() > kMaxIoThreads) {
    return RefuseSetting("io_threads",
                         absl::StrCat(config.io_threads(), ": at most ", kMaxIoThreads));
  }
  if (config.host_timeout_ms() == 0) config.set_host_timeout_ms(kDefaultHostTimeoutMs);
  if (config.host_timeout_ms() > kMaxHostTimeoutMs) {
    return RefuseSetting("host_timeout_ms",
                         absl::StrCat(config.host_timeout_ms(), ": at most ", kMaxHostTimeoutMs));
  }
  return absl::OkStatus();
}

absl::Status CompleteAndCheck(TargetConfig& config) {
  BATON_RETURN_IF_ERROR(CheckQueues(config));
  if (config.port() > 65535) {
    return RefuseSetting("port", absl::StrCat(config.port(), ": choose 1 to 65535"));
  }
  if (config.subsystems_size() == 0) return RefuseSetting("subsystems", "there are none");
  if (static_cast<size_t>(config.subsystems_size()) > kMaxSubsystems) {
    return RefuseSetting("subsystems", absl::StrCat("more than ", kMaxSubsystems));
  }
  std::set<std::string> names;
  for (int i = 0; i < config.subsystems_size(); ++i) {
    const std::string field = absl::StrCat("subsystems[", i, "]");
    BATON_RETURN_IF_ERROR(CheckSubsystem(field, *config.mutable_subsystems(i)));
    if (!names.insert(config.subsystems(i).nqn()).second) {
      return RefuseSetting(field + ".nqn", config.subsystems(i).nqn() + " is there twice");
    }
  }
  return absl::OkStatus();
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

absl::StatusOr<TargetConfig> ParseConfiguration(const std::string& text, std::string_view name) {
  TargetConfig config;
  FirstError error;
  google::protobuf::TextFormat::Parser parser;
  parser.RecordErrorsTo(&error);
  if (!parser.ParseFromString(text, &config)) {
    return absl::InvalidArgumentError(absl::StrCat(std::string(name), ":", error.text()));
  }
  const absl::Status status = CompleteAndCheck(config);
  if (!status.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(std::string(name), ": ", status.message()));
  }
  return config;
}

absl::StatusOr<TargetConfig> ReadConfiguration(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return ErrnoStatus(errno, absl::StrCat("configuration ", path));
  // errno is checked, too, because a directory can be opened and then looks like an empty file.
  std::string text;
  char piece[4096];
  errno = 0;
  while (file.read(piece, sizeof(piece)), file.gcount() > 0) {
    text.append(piece, static_cast<size_t>(file.gcount()));
  }
  if (file.bad() || errno != 0) return ErrnoStatus(errno, absl::StrCat("configuration ", path));
  return ParseConfiguration(text, path);
}

absl::StatusOr<std::array<uint8_t, 16>> ParseUuid(const std::string& text) {
  std::array<uint8_t, 16> uuid = {};
  size_t digits = 0;
  bool known = true, zero = true;
  for (const char letter : text) {
    if (letter == '-') continue;
    const int digit = DigitOf(letter);
    known = known && digit >= 0 && digits < 32;
    if (!known) break;
    zero = zero && digit == 0;
    uuid[digits / 2] = static_cast<uint8_t>(uuid[digits / 2] << 4 | digit);
    ++digits;
  }
  if (!known || zero || digits != 32) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", text, "\": 32 hexadecimal digits, not all 0"));
  }
  return uuid;
}

}  // namespace baton::nvmed
