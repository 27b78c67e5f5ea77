// A loop on verbs.h without anything of Baton above the queues' driver: no logs, no worker library,
// and nothing that another process could go on from.
#ifndef TESTS_BENCH_RAW_OWNER_H_
#define TESTS_BENCH_RAW_OWNER_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "lib/verbs/verbs.h"
#include "tests/bench/echo_queues.h"
#include "tests/bench/queue_owner.h"

namespace baton::bench {

class RawOwner final : public QueueOwner {
 public:
  static absl::StatusOr<std::unique_ptr<RawOwner>> Start(std::unique_ptr<verbs::Device> device);

  uint16_t port() const override { return listener_->address().port; }
  absl::Status Establish() override;
  bool established() const override { return established_; }
  absl::StatusOr<int> Turn() override;
  absl::Status Wait() override;
  uint64_t received() const override { return received_; }
  uint64_t answered() const override { return answered_; }

 private:
  explicit RawOwner(std::unique_ptr<verbs::Device> device) : device_(std::move(device)) {}

  const std::unique_ptr<verbs::Device> device_;
  std::unique_ptr<EchoQueues> queues_;
  std::unique_ptr<verbs::Listener> listener_;
  std::unique_ptr<verbs::ConnectionId> id_;
  bool established_ = false;
  absl::Span<const verbs::Completion> taken_;  // that Wait() has found
  uint64_t received_ = 0;
  uint64_t answered_ = 0;
};

}  // namespace baton::bench

#endif  // TESTS_BENCH_RAW_OWNER_H_
