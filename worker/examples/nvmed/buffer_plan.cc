#include "worker/examples/nvmed/buffer_plan.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"

namespace baton::nvmed {
namespace {

constexpr uint64_t kMagic = 0x31646d766e746162;  // "batnvmd1"
constexpr size_t kMaxMemoryNamespaces = 128;
constexpr uint32_t kMinChunks = 4;

struct StampedMemory {
  uint64_t name = 0;
  uint64_t bytes = 0;
};

struct Header {
  uint64_t magic = 0;  // 0: nobody has used the buffers yet; stored last
  uint32_t queue_entries = 0;
  uint32_t in_capsule_bytes = 0;
  uint32_t chunk_bytes = 0;
  uint32_t memory_count = 0;
  StampedMemory memory[kMaxMemoryNamespaces] = {};
};
static_assert(sizeof(Header) == 24 + 16 * kMaxMemoryNamespaces);
static_assert(sizeof(Header) <= kPageBytes);

uint64_t RoundUp(uint64_t bytes) { return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes; }

// FNV-1a.
uint64_t Hash(const std::string& text, uint64_t hash = 0xcbf29ce484222325) {
  for (const char letter : text) {
    hash = (hash ^ static_cast<uint8_t>(letter)) * 0x100000001b3;
  }
  return hash;
}

absl::Status Differs(const char* field, uint64_t ours, uint64_t theirs) {
  return absl::FailedPreconditionError(absl::StrCat(field, " ", ours, ": the service began with ",
                                                    theirs,
                                                    ", and keeps it until it is restarted"));
}

}  // namespace

absl::StatusOr<BufferPlan> BufferPlan::Make(const TargetConfig& config, const Capacity& capacity,
                                            uint64_t buffer_bytes) {
  BufferPlan plan;
  plan.queue_entries_ = std::min(
      {config.queue_entries(), capacity.receive_queue_depth / 2, capacity.send_queue_depth / 4});
  // Linux's admin queue needs 32 entries.
  if (plan.queue_entries_ < 32) {
    return absl::InvalidArgumentError(absl::StrCat(
        "queues of ", capacity.send_queue_depth, " sends and ", capacity.receive_queue_depth,
        " receives: raise the service's send_queue_depth to ", 4 * config.queue_entries(),
        " and receive_queue_depth to ", 2 * config.queue_entries()));
  }
  plan.in_capsule_bytes_ = config.in_capsule_bytes();
  plan.chunk_bytes_ = config.max_transfer_bytes();

  uint64_t offset = kPageBytes;
  for (int i = 0; i < config.subsystems_size(); ++i) {
    const SubsystemConfig& subsystem = config.subsystems(i);
    for (int j = 0; j < subsystem.namespaces_size(); ++j) {
      const NamespaceConfig& one = subsystem.namespaces(j);
      if (!one.has_memory()) continue;
      if (offset > buffer_bytes || one.memory().bytes() > buffer_bytes - offset) {
        return absl::InvalidArgumentError(
            absl::StrCat("subsystems[", i, "].namespaces[", j,
                         "].memory.bytes: ", one.memory().bytes(), ": the service has ",
                         buffer_bytes, " bytes of buffers: lower it, or raise buffer_bytes"));
      }
      plan.memory_.push_back(
          {i, j, Hash(absl::StrCat(subsystem.nqn(), "/", one.id(), "/", one.block_bytes())),
           one.memory().bytes(), offset});
      offset += one.memory().bytes();
    }
  }
  if (plan.memory_.size() > kMaxMemoryNamespaces) {
    return absl::InvalidArgumentError(absl::StrCat("subsystems: ", plan.memory_.size(),
                                                   " namespaces in memory, at most ",
                                                   kMaxMemoryNamespaces));
  }
  plan.slabs_ = offset;
  plan.response_ring_ = uint64_t{2} * capacity.send_queue_depth;
  plan.capsules_ = plan.response_ring_ * kResponseBytes;
  plan.slab_bytes_ = RoundUp(plan.capsules_ + uint64_t{plan.queue_entries_} * plan.capsule_bytes());
  plan.first_chunk_ = plan.slabs_ + capacity.connections * plan.slab_bytes_;
  const uint64_t needed = plan.first_chunk_ + uint64_t{kMinChunks} * plan.chunk_bytes_;
  if (buffer_bytes < needed) {
    return absl::InvalidArgumentError(
        absl::StrCat("the service's ", buffer_bytes, " bytes of buffers are too few for ",
                     capacity.connections, " queues of ", plan.queue_entries_, " entries and ",
                     plan.slabs_, " bytes of namespaces: raise buffer_bytes to ", needed,
                     " or more (commands wait when it is little more), or lower max_connections, ",
                     "queue_entries or in_capsule_bytes"));
  }
  plan.chunks_ = static_cast<uint32_t>(std::min<uint64_t>(
      (buffer_bytes - plan.first_chunk_) / plan.chunk_bytes_, uint64_t{UINT16_MAX} - 16));
  return plan;
}

absl::Status BufferPlan::Check(absl::Span<const uint8_t> buffers) const {
  Header theirs;
  std::memcpy(&theirs, buffers.data(), sizeof(theirs));
  if (theirs.magic == 0) return absl::OkStatus();
  if (theirs.magic != kMagic) {
    return absl::FailedPreconditionError("the buffers are in use by another program");
  }
  if (theirs.queue_entries != queue_entries_) {
    return Differs("queue_entries", queue_entries_, theirs.queue_entries);
  }
  if (theirs.in_capsule_bytes != in_capsule_bytes_) {
    return Differs("in_capsule_bytes", in_capsule_bytes_, theirs.in_capsule_bytes);
  }
  if (theirs.chunk_bytes != chunk_bytes_) {
    return Differs("max_transfer_bytes", chunk_bytes_, theirs.chunk_bytes);
  }
  if (theirs.memory_count != memory_.size()) {
    return Differs("the number of namespaces in memory", memory_.size(), theirs.memory_count);
  }
  for (size_t i = 0; i < memory_.size(); ++i) {
    if (theirs.memory[i].name != memory_[i].name) {
      return absl::FailedPreconditionError(absl::StrCat(
          "the namespaces in memory are others than those the service began with, or in another "
          "order, which it keeps until it is restarted"));
    }
    if (theirs.memory[i].bytes != memory_[i].bytes) {
      return Differs("memory.bytes", memory_[i].bytes, theirs.memory[i].bytes);
    }
  }
  return absl::OkStatus();
}

void BufferPlan::Stamp(absl::Span<uint8_t> buffers) const {
  auto* const magic = reinterpret_cast<uint64_t*>(buffers.data());
  // Written once: a worker that died while it wrote the header anew would leave buffers that look
  // unused.
  if (__atomic_load_n(magic, __ATOMIC_ACQUIRE) == kMagic) return;
  Header ours;
  ours.queue_entries = queue_entries_;
  ours.in_capsule_bytes = in_capsule_bytes_;
  ours.chunk_bytes = chunk_bytes_;
  ours.memory_count = static_cast<uint32_t>(memory_.size());
  for (size_t i = 0; i < memory_.size(); ++i) {
    ours.memory[i] = {memory_[i].name, memory_[i].bytes};
  }
  std::memcpy(buffers.data(), &ours, sizeof(ours));
  __atomic_store_n(magic, kMagic, __ATOMIC_RELEASE);
}

uint64_t BufferPlan::Memory(int subsystem, int index) const {
  for (const MemoryRange& range : memory_) {
    if (range.subsystem == subsystem && range.index == index) return range.offset;
  }
  return 0;
}

uint32_t BufferPlan::ChunkOf(uint64_t offset) const {
  if (offset < first_chunk_) return chunks_;
  return static_cast<uint32_t>(std::min<uint64_t>((offset - first_chunk_) / chunk_bytes_, chunks_));
}

}  // namespace baton::nvmed
