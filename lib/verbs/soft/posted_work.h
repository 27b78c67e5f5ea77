// The sources of a queue pair that its user posts to in this process: the window is the queue.
#ifndef LIB_VERBS_SOFT_POSTED_WORK_H_
#define LIB_VERBS_SOFT_POSTED_WORK_H_

#include <cstdint>

#include "lib/verbs/soft/shared_receive_queue.h"
#include "lib/verbs/soft/work_source.h"
#include "lib/verbs/verbs.h"

namespace baton::verbs::soft {

class PostedSends final : public SendSource {
 public:
  PostedSends(uint32_t max_requests, uint32_t max_sges, uint32_t max_inline)
      : SendSource(max_requests, max_sges, max_inline) {}

  // Requires a window that is not full. Inline data is copied.
  void Post(const SendRequest& request);

  bool Fetch() override { return false; }
  uint32_t Waiting() override { return 0; }
};

class PostedReceives final : public ReceiveSource {
 public:
  PostedReceives(uint32_t max_requests, uint32_t max_sges)
      : ReceiveSource(max_requests, max_sges) {}
  // A message takes a receive from `shared` when it begins.
  explicit PostedReceives(SoftSharedReceiveQueue* shared)
      : ReceiveSource(1, shared->max_sges()), shared_(shared) {}

  bool shared() const { return shared_ != nullptr; }
  // Requires receives that are not shared, and a window that is not full.
  void Post(const ReceiveRequest& request) { PushReceive(request, &window()); }

  bool Fetch() override { return shared() && shared_->Take(&window()); }
  uint32_t Waiting() override { return 0; }

 private:
  SoftSharedReceiveQueue* const shared_ = nullptr;
};

}  // namespace baton::verbs::soft

#endif  // LIB_VERBS_SOFT_POSTED_WORK_H_
