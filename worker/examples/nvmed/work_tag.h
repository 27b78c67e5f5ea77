// Packs the purpose of a target's work request into its tag, which the next owner of the shard
// reads, too.
#ifndef WORKER_EXAMPLES_NVMED_WORK_TAG_H_
#define WORKER_EXAMPLES_NVMED_WORK_TAG_H_

#include <cstdint>
#include <optional>

namespace baton::nvmed {

enum class Purpose : uint8_t {
  kCapsule = 0,       // a receive
  kFetch = 1,         // READ of a command's data
  kReturn = 2,        // WRITE of a command's data
  kResponse = 3,      // SEND of its completion
  kLastResponse = 4,  // after which the queue is disconnected
};

struct WorkTag {
  Purpose purpose = Purpose::kCapsule;
  uint16_t slot = 0;
  std::optional<uint32_t> chunk;
};

inline uint64_t Pack(const WorkTag& tag) {
  return uint64_t{tag.slot} | uint64_t{static_cast<uint8_t>(tag.purpose)} << 16 |
         (tag.chunk ? uint64_t{*tag.chunk} + 1 : 0) << 32;
}

inline WorkTag Unpack(uint64_t packed) {
  WorkTag tag;
  tag.slot = static_cast<uint16_t>(packed);
  tag.purpose = static_cast<Purpose>(packed >> 16 & 0xff);
  if (packed >> 32 != 0) tag.chunk = static_cast<uint32_t>((packed >> 32) - 1);
  return tag;
}

}  // namespace baton::nvmed

#endif  // WORKER_EXAMPLES_NVMED_WORK_TAG_H_
