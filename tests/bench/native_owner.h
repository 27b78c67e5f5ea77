// A native worker, with the keeper's part of it in the same thread, which has nothing to do once
// the connection is there.
#ifndef TESTS_BENCH_NATIVE_OWNER_H_
#define TESTS_BENCH_NATIVE_OWNER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/arena/arena.h"
#include "lib/base/file_descriptor.h"
#include "lib/verbs/verbs.h"
#include "supervisor/driver/native/native_engine.h"
#include "tests/bench/answer_service.h"
#include "tests/bench/queue_owner.h"
#include "worker/worker_impl.h"

namespace baton::bench {

class NativeOwner final : public QueueOwner, private driver_process::EngineListener {
 public:
  static absl::StatusOr<std::unique_ptr<NativeOwner>> Start(std::unique_ptr<verbs::Device> device);
  ~NativeOwner() override;

  uint16_t port() const override { return port_; }
  absl::Status Establish() override;
  bool established() const override { return service_.established(); }
  absl::StatusOr<int> Turn() override { return worker_->Poll(); }
  absl::Status Wait() override { return worker_->Wait(kWaitMs); }
  uint64_t received() const override { return service_.received(); }
  uint64_t answered() const override { return service_.answered(); }

 private:
  explicit NativeOwner(std::unique_ptr<verbs::Device> device) : device_(std::move(device)) {}
  absl::Status Open();
  absl::Status AddWorker();

  void OnEvent(std::string_view, const std::string&, uint64_t, int, int) override {}
  void OnFenced(uint64_t) override {}
  void OnDeviceLost(const absl::Status&) override {}

  const std::unique_ptr<verbs::Device> device_;
  std::optional<arena::Arena> arena_;
  std::unique_ptr<driver_process::NativeEngine> engine_;
  std::unique_ptr<driver_process::NativeDriver> driver_;
  FileDescriptor keeper_;  // the other end of the worker's session
  AnswerService service_;
  std::unique_ptr<WorkerImpl> worker_;
  uint16_t port_ = 0;
};

}  // namespace baton::bench

#endif  // TESTS_BENCH_NATIVE_OWNER_H_
