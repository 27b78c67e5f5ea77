// A brokered worker, and the engine of its keeper in a process of its own.
#ifndef TESTS_BENCH_BROKERED_OWNER_H_
#define TESTS_BENCH_BROKERED_OWNER_H_

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"
#include "lib/verbs/verbs.h"
#include "tests/bench/answer_service.h"
#include "tests/bench/queue_owner.h"
#include "worker/worker_impl.h"

namespace baton::bench {

class BrokeredOwner final : public QueueOwner {
 public:
  using Open = std::function<absl::StatusOr<std::unique_ptr<verbs::Device>>()>;

  // `open` is called in the engine's process. REQUIRES: this process has one thread.
  static absl::StatusOr<std::unique_ptr<BrokeredOwner>> Start(const Open& open);
  ~BrokeredOwner() override;

  uint16_t port() const override { return port_; }
  absl::Status Establish() override { return worker_->Poll().status(); }
  bool established() const override { return service_.established(); }
  absl::StatusOr<int> Turn() override { return worker_->Poll(); }
  absl::Status Wait() override { return worker_->Wait(kWaitMs); }
  uint64_t received() const override { return service_.received(); }
  uint64_t answered() const override { return service_.answered(); }

 private:
  BrokeredOwner() = default;
  absl::Status Make(const Open& open);
  absl::Status StartEngine(const Open& open, arena::Arena* arena, FileDescriptor wake);
  absl::Status StartWorker(const arena::Arena& arena, FileDescriptor wake);

  pid_t engine_ = -1;
  FileDescriptor life_;    // closed, the engine's process ends
  FileDescriptor keeper_;  // the other end of the worker's session: nobody answers there
  AnswerService service_;
  std::unique_ptr<WorkerImpl> worker_;
  uint16_t port_ = 0;
};

}  // namespace baton::bench

#endif  // TESTS_BENCH_BROKERED_OWNER_H_
