// Owners of queues that are workers of Baton: a brokered one and a native one.
#ifndef TESTS_BENCH_WORKER_OWNERS_H_
#define TESTS_BENCH_WORKER_OWNERS_H_

#include <sys/socket.h>
#include <sys/types.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/arena/arena.h"
#include "lib/base/file_descriptor.h"
#include "lib/base/status.h"
#include "lib/verbs/verbs.h"
#include "supervisor/driver/native/native_engine.h"
#include "tests/bench/answer_service.h"
#include "tests/bench/queue_owner.h"
#include "worker/worker.h"
#include "worker/worker_impl.h"

namespace baton::bench {

inline constexpr uint64_t kEchoWorkerId = 1;

inline absl::Status MakeStreams(FileDescriptor* one, FileDescriptor* other) {
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) != 0) {
    return ErrnoStatus(errno, "socketpair");
  }
  one->Reset(pair[0]);
  other->Reset(pair[1]);
  return absl::OkStatus();
}

// A mapping of its own, as a worker has.
inline absl::StatusOr<arena::Arena> MapAgain(const arena::Arena& arena) {
  const auto copy = [](int fd) { return FileDescriptor(dup(fd)); };
  return arena::Arena::Map(copy(arena.worker_log_fd()), copy(arena.driver_log_fd()),
                           copy(arena.buffers_fd()));
}

// It never sleeps between two messages.
inline WorkerOptions EchoWorkerOptions() {
  WorkerOptions options;
  options.control_stream = false;
  options.yield_microseconds = 1'000'000;
  return options;
}

// A brokered worker, and the engine of its keeper in a process of its own.
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

// A native worker, with the keeper's part of it in the same thread, which has nothing to do once
// the connection is there.
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

#endif  // TESTS_BENCH_WORKER_OWNERS_H_
