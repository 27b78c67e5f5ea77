// Receives of the soft device: those of one queue pair, and those that several share.
#ifndef LIB_VERBS_SOFT_SHARED_RECEIVE_QUEUE_H_
#define LIB_VERBS_SOFT_SHARED_RECEIVE_QUEUE_H_

#include <cstdint>

#include "lib/verbs/soft/engine.h"
#include "lib/verbs/soft/work_ring.h"
#include "lib/verbs/soft/work_source.h"
#include "lib/verbs/verbs.h"

namespace baton::verbs::soft {

inline void PushReceive(const ReceiveRequest& request, WorkRing<ReceiveWork>* ring) {
  ReceiveWork& work = ring->Push(request.sges);
  work = {request.wr_id, 0, static_cast<uint8_t>(request.sges.size()), false};
  for (const ScatterGather& sge : request.sges) work.length += sge.length;
}

class SoftSharedReceiveQueue final : public SharedReceiveQueue {
 public:
  SoftSharedReceiveQueue(Engine* engine, uint32_t entries, uint32_t max_sges)
      : engine_(engine), entries_(entries), max_sges_(max_sges), ring_(entries, max_sges) {}
  ~SoftSharedReceiveQueue() override { engine_->ForgetEventsOf(this); }

  absl::Status PostReceive(absl::Span<const ReceiveRequest> requests, size_t* posted) override;
  absl::Status ArmLimit(uint32_t limit) override;

  uint32_t max_sges() const { return max_sges_; }
  // Moves the oldest receive to `ring`, which is one of a queue pair; false: there is none.
  bool Take(WorkRing<ReceiveWork>* ring);

 private:
  Engine* const engine_;
  const uint32_t entries_;
  const uint32_t max_sges_;
  uint32_t limit_ = 0;  // 0: not armed
  WorkRing<ReceiveWork> ring_;
};

}  // namespace baton::verbs::soft

#endif  // LIB_VERBS_SOFT_SHARED_RECEIVE_QUEUE_H_
