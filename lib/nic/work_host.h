#ifndef LIB_NIC_WORK_HOST_H_
#define LIB_NIC_WORK_HOST_H_

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>

#include "lib/nic/event_loop.h"
#include "lib/verbs/verbs.h"

namespace baton::verbs::soft {

// The memory that a queue pair's requests, and those of its peer, name by keys and addresses.
class MemoryAccess {
 public:
  virtual ~MemoryAccess() = default;

  // Return where [address, address + length) is in this process. nullptr: there is no such key, or
  // it does not grant this access. Require a length above 0.
  virtual uint8_t* FindLocal(uint32_t lkey, uint64_t address, uint64_t length,
                             uint32_t access) const = 0;
  virtual uint8_t* FindRemote(uint32_t rkey, uint64_t address, uint64_t length,
                              uint32_t access) const = 0;

  // Makes `rkey` unusable. Returns false if no key of this value may be invalidated remotely.
  virtual bool Invalidate(uint32_t rkey) = 0;

  // Return whether the key permits this access. Length 0 is permitted without a look at the key, as
  // in InfiniBand.
  bool PermitsLocal(uint32_t lkey, uint64_t address, uint64_t length, uint32_t access) const {
    return length == 0 || FindLocal(lkey, address, length, access) != nullptr;
  }
  bool PermitsRemote(uint32_t rkey, uint64_t address, uint64_t length, uint32_t access) const {
    return length == 0 || FindRemote(rkey, address, length, access) != nullptr;
  }

  // Gives bytes [offset, offset + length) of a scatter-gather list as at most `max` iovecs (one for
  // each sge suffices) and returns how many. -1: a key, a bound or a right is wrong, or the list is
  // shorter.
  int Gather(const ScatterGather* sges, size_t count, uint64_t offset, uint64_t length,
             uint32_t access, iovec* iovecs, int max) const;
};

inline int MemoryAccess::Gather(const ScatterGather* sges, size_t count, uint64_t offset,
                                uint64_t length, uint32_t access, iovec* iovecs, int max) const {
  int used = 0;
  for (size_t index = 0; index < count && length > 0; ++index) {
    const ScatterGather& sge = sges[index];
    if (offset >= sge.length) {
      offset -= sge.length;
      continue;
    }
    const uint64_t take = sge.length - offset < length ? sge.length - offset : length;
    if (used == max) return -1;
    uint8_t* const at = FindLocal(sge.lkey, sge.address, sge.length, access);
    if (at == nullptr) return -1;
    iovecs[used].iov_base = at + offset;
    iovecs[used++].iov_len = take;
    length -= take;
    offset = 0;
  }
  return length == 0 ? used : -1;
}

// The interface of a queue pair to its two halves.
class WorkHost {
 public:
  virtual ~WorkHost() = default;
  virtual EventLoop& loop() = 0;
  virtual MemoryAccess& memory() = 0;
  // Moves to the error state. Answers that are due to the peer are still sent.
  virtual void Fail() = 0;
  // Called when there is something to transmit, in the next turn.
  virtual void WantTransmit() = 0;
  // Drops request frames that were generated and not begun.
  virtual void DropRequestFrames() = 0;
  // See FrameStream::FirstUnwritten.
  virtual uint64_t FirstUnwritten(uint64_t end) const = 0;
  // Injected faults.
  virtual void Stall(uint64_t duration_us) = 0;
  virtual bool stalled() const = 0;
  virtual void CutLink() = 0;
  virtual void LoseDevice() = 0;
};

}  // namespace baton::verbs::soft

#endif  // LIB_NIC_WORK_HOST_H_
