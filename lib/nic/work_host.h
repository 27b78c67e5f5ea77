// The interface of a queue pair to its two halves.
#ifndef LIB_NIC_WORK_HOST_H_
#define LIB_NIC_WORK_HOST_H_

#include <cstdint>

#include "lib/nic/event_loop.h"
#include "lib/nic/memory_access.h"

namespace baton::verbs::soft {

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
