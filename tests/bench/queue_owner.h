// The owner of one connection's queues, which answers each message with the bytes that it received.
// Suites compare owners of different kinds: they serve the same peer, and differ in what is between
// the queues and the handler.
#ifndef TESTS_BENCH_QUEUE_OWNER_H_
#define TESTS_BENCH_QUEUE_OWNER_H_

#include <sched.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "lib/arena/arena.h"
#include "lib/base/clock.h"
#include "lib/base/file_descriptor.h"
#include "lib/base/status.h"
#include "lib/nic/nic.h"
#include "lib/verbs/verbs.h"
#include "supervisor/driver/native/native_engine.h"
#include "tests/bench/answer_service.h"
#include "tests/lib/nic/harness.h"
#include "worker/worker.h"
#include "worker/worker_impl.h"

namespace baton::bench {

// ---- A NIC in software that one thread has with its clients.

// Two sockets of whole messages: of one the NIC has the ends.
struct NicSockets {
  FileDescriptor objects, ids;
};
struct NicClient {
  NicSockets client;
  NicSockets nic;
};
absl::StatusOr<NicClient> MakeNicClient();

// Makes a device whose NIC is at the other ends.
absl::StatusOr<std::unique_ptr<verbs::Device>> OpenDevice(NicSockets sockets);

// While a client is set up, or asks the NIC for something, a thread of its own turns it.
// Thread-compatible.
class ThreadedNic {
 public:
  // Serves these, with the thread.
  static absl::StatusOr<std::unique_ptr<ThreadedNic>> Start(std::vector<NicSockets> clients);
  ~ThreadedNic() { Stop(); }

  // Ends the thread: the caller turns the NIC from now on.
  void Stop();
  // Starts the thread again.
  void Resume();

  // Without the thread.
  bool Progress() { return nic_->Progress(); }
  // The same, but for messages from clients.
  bool Execute() { return nic_->Execute(); }

 private:
  std::unique_ptr<nic::Nic> nic_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

// ---- Owners.

// Thread-compatible. All functions are called by the thread that made it.
class QueueOwner {
 public:
  virtual ~QueueOwner() = default;

  // The port that it listens at.
  virtual uint16_t port() const = 0;
  // One turn of what makes the connection. Called until established() is true.
  virtual absl::Status Establish() = 0;
  virtual bool established() const = 0;

  // One turn: takes what has completed, at most 64 completions. For each message it posts a receive
  // and the answer. Returns how many completions it took.
  virtual absl::StatusOr<int> Turn() = 0;
  // Looks at the queues, and yields now and then, until Turn() has something to do or kWaitMs are
  // over.
  virtual absl::Status Wait() = 0;
  static constexpr int kWaitMs = 20;

  virtual uint64_t received() const = 0;  // messages
  virtual uint64_t answered() const = 0;  // answers that have completed
};

// A native worker makes so many between two yields (kLooksPerYield in wait_loop.cc).
inline constexpr int kLooks = 4;

// The wait of owners that have no worker library. It is the library's: some looks, a yield, a look
// at the clock, and again. `look` returns whether it has found something, or an error. Ends when it
// has, and after QueueOwner::kWaitMs.
template <typename Look>
absl::Status PollingWait(const Look& look) {
  const uint64_t deadline = MonotonicNanoseconds() + QueueOwner::kWaitMs * uint64_t{1'000'000};
  do {
    for (int i = 0; i < kLooks; ++i) {
      BATON_ASSIGN_OR_RETURN(const bool found, look());
      if (found) return absl::OkStatus();
    }
    sched_yield();
  } while (MonotonicNanoseconds() < deadline);
  return absl::OkStatus();
}

// A queue pair of verbs.h, its completion queue, and memory for its messages of kEchoBytes.
// Requests are collected, and Flush() posts each kind as one list. Every send is signalled.
// Thread-compatible.
class EchoQueues {
 public:
  // Twice the depth for receives, from 0 on, and as many for messages that are sent from here.
  static constexpr uint32_t kReceiveBuffers = 2 * kEchoDepth;
  static constexpr uint32_t kBuffers = 2 * kReceiveBuffers;

  // `device` outlives it. All receives are posted.
  static absl::StatusOr<std::unique_ptr<EchoQueues>> Make(verbs::Device* device);

  verbs::QueuePair* queue_pair() { return queue_pair_.get(); }
  uint8_t* buffer(uint32_t index) { return memory_.begin() + size_t{index} * kEchoBytes; }
  // The buffer that a completed receive was posted with.
  static uint32_t BufferOf(const verbs::Completion& receive) {
    return static_cast<uint32_t>(receive.wr_id % kReceiveBuffers);
  }

  // Adds a receive into the next buffer. REQUIRES: at most kEchoDepth are added between two
  // flushes. The same holds for Send().
  void Receive() {
    const size_t at = receive_count_++;
    receive_buffers_[at].address = AddressOf(static_cast<uint32_t>(next_ % kReceiveBuffers));
    receives_[at].wr_id = next_++;
  }
  void Send(uint32_t buffer) {
    const size_t at = send_count_++;
    send_buffers_[at].address = AddressOf(buffer);
    sends_[at].wr_id = buffer;
  }
  absl::Status Flush();

  // Returns the next completions, at most 64. An error if one of them is none of success.
  absl::StatusOr<absl::Span<const verbs::Completion>> Poll();

 private:
  explicit EchoQueues() : memory_(uint64_t{kBuffers} * kEchoBytes) {}
  absl::Status Open(verbs::Device* device);
  uint64_t AddressOf(uint32_t index) const {
    return reinterpret_cast<uintptr_t>(memory_.begin()) + uint64_t{index} * kEchoBytes;
  }

  nic::SharedFile memory_;
  std::unique_ptr<verbs::MemoryRegion> region_;
  std::unique_ptr<verbs::CompletionQueue> completions_;
  std::unique_ptr<verbs::QueuePair> queue_pair_;

  uint64_t next_ = 0;  // receive
  size_t receive_count_ = 0;
  size_t send_count_ = 0;
  std::array<verbs::ScatterGather, kEchoDepth> receive_buffers_, send_buffers_;
  std::array<verbs::ReceiveRequest, kEchoDepth> receives_;
  std::array<verbs::SendRequest, kEchoDepth> sends_;
  std::array<verbs::Completion, 64> taken_;
};

// An owner of queues that is a loop on verbs.h without anything of Baton above the queues' driver:
// no logs, no worker library, and nothing that another process could go on from.
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

// ---- Owners of queues that are workers of Baton: a brokered one and a native one.

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

#endif  // TESTS_BENCH_QUEUE_OWNER_H_
