// The handler of workers: brokered and native ones run the same.
#ifndef TESTS_BENCH_ANSWER_SERVICE_H_
#define TESTS_BENCH_ANSWER_SERVICE_H_

#include <cstdint>

#include "lib/arena/layout.h"
#include "worker/worker.h"

namespace baton::bench {

inline constexpr uint32_t kEchoDepth = 64;  // of the send queue, and of the receive queue
inline constexpr uint32_t kEchoBytes = 64;  // of a message

// The shape of a service with one connection. `pooled_queue_pairs` is 0 if the driver drives the
// queues.
arena::Shape ShapeOfOne(uint32_t pooled_queue_pairs);

// Posts a receive for each message, and sends the message back. An error ends the process.
class AnswerService final : public Service {
 public:
  bool established() const { return established_; }
  uint64_t received() const { return received_; }
  uint64_t answered() const { return answered_; }

  absl::Status OnAdopt(Shard&) override { return absl::OkStatus(); }
  void OnCompletion(Shard& shard, const Completion& completion) override;

 private:
  bool established_ = false;
  uint64_t received_ = 0;
  uint64_t answered_ = 0;
};

}  // namespace baton::bench

#endif  // TESTS_BENCH_ANSWER_SERVICE_H_
