// A MemoryWire is a memory through which two NICs of one machine exchange the frames of a
// connection. wire.md specifies it.
#ifndef LIB_NIC_MEMORY_WIRE_H_
#define LIB_NIC_MEMORY_WIRE_H_

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"
#include "lib/nic/mapped_file.h"

namespace baton::nic {

inline constexpr uint32_t kRingBytes = 64 * 1024;

// One direction of a wire is a ring of bytes with one writer and one reader, in different processes
// that do not trust each other. Positions count bytes from 0. What lies between head and tail is in
// the ring.
struct RingControl {
  // The writer's line, which the reader looks at.
  alignas(64) uint64_t tail;
  uint32_t sleeping;  // 1: the reader does not look. The reader sets it, the writer clears it
  uint32_t reserved_a[13];
  // The reader's line.
  uint64_t head;
  uint32_t waiting;  // 1: the writer waits for room. The writer sets it, the reader clears it
  uint32_t reserved_b[13];
};
static_assert(sizeof(RingControl) == 128 && alignof(RingControl) == 64);
static_assert(offsetof(RingControl, sleeping) == 8 && offsetof(RingControl, head) == 64 &&
              offsetof(RingControl, waiting) == 72);

class RingWriter {
 public:
  // The memory outlives the writer. A new ring is all 0.
  RingWriter(RingControl* control, uint8_t* bytes) : control_(control), bytes_(bytes) {}

  // Writes as many bytes as there is room for and returns how many. -1: the reader has stored an
  // impossible position.
  ssize_t Write(const iovec* iovecs, int count);
  // After Write(): returns true if the reader sleeps. The caller has to wake it, once.
  bool ReaderSleeps();
  // After Write() had too little room: returns false if there is room now. Returns true if the
  // reader will find that the writer waits.
  bool PrepareToWait();
  void EndWait();
  // Returns whether something can be written.
  bool HasRoom();

 private:
  bool LoadHead();
  void Copy(const uint8_t* from, size_t size);
  uint32_t room() const { return kRingBytes - static_cast<uint32_t>(tail_ - head_); }

  RingControl* const control_;
  uint8_t* const bytes_;
  uint64_t tail_ = 0;  // our own copy, because the peer can write to the memory
  uint64_t head_ = 0;  // as it was read last
};

class RingReader {
 public:
  RingReader(RingControl* control, const uint8_t* bytes) : control_(control), bytes_(bytes) {}

  // Takes as many bytes as there are and fit, and returns how many. -1: the writer has stored an
  // impossible position.
  ssize_t Read(const iovec* iovecs, int count);
  // After Read(): returns true if the writer waits for room. The caller has to wake it, once.
  bool WriterWaits();
  // Returns false if there is something to read now. Returns true if the writer will find that the
  // reader sleeps.
  bool PrepareToSleep();
  void Awake();

 private:
  uint64_t LoadTail() const;

  RingControl* const control_;
  const uint8_t* const bytes_;
  uint64_t head_ = 0;
};

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
