// One direction of a memory between two NICs: a ring of bytes with one writer and one reader, in
// different processes that do not trust each other. wire.md specifies it.
#ifndef LIB_NIC_BYTE_RING_H_
#define LIB_NIC_BYTE_RING_H_

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>

namespace baton::nic {

inline constexpr uint32_t kRingBytes = 64 * 1024;

// Positions count bytes from 0. What lies between head and tail is in the ring.
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

}  // namespace baton::nic

#endif  // LIB_NIC_BYTE_RING_H_
