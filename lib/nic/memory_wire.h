// A memory through which two NICs of one machine exchange the frames of a connection (wire.md).
#ifndef LIB_NIC_MEMORY_WIRE_H_
#define LIB_NIC_MEMORY_WIRE_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"
#include "lib/nic/byte_ring.h"
#include "lib/nic/mapped_file.h"

namespace baton::nic {

struct MemoryWireLayout {
  RingControl to_peer;    // from the side that made the memory
  RingControl from_peer;  // to the side that made it
  uint8_t reserved[4096 - 2 * sizeof(RingControl)];
  uint8_t to_peer_bytes[kRingBytes];
  uint8_t from_peer_bytes[kRingBytes];
};
static_assert(sizeof(MemoryWireLayout) == 4096 + 2 * kRingBytes);
static_assert(offsetof(MemoryWireLayout, from_peer) == 128 &&
              offsetof(MemoryWireLayout, to_peer_bytes) == 4096 &&
              offsetof(MemoryWireLayout, from_peer_bytes) == 4096 + kRingBytes);

class MemoryWire {
 public:
  // Makes the memory. `*memfd` is set to the descriptor that the peer needs.
  static absl::StatusOr<std::unique_ptr<MemoryWire>> Make(FileDescriptor* memfd);
  // Maps a memory that the peer has made, or, if `maker`, this side. kInvalidArgument: `memfd` is
  // no such memory.
  static absl::StatusOr<std::unique_ptr<MemoryWire>> Map(int memfd, bool maker = false);

  RingWriter& out() { return out_; }
  RingReader& in() { return in_; }

 private:
  MemoryWire(std::shared_ptr<MappedFile> file, MemoryWireLayout* layout, bool maker);

  const std::shared_ptr<MappedFile> file_;
  RingWriter out_;
  RingReader in_;
};

}  // namespace baton::nic

#endif  // LIB_NIC_MEMORY_WIRE_H_
