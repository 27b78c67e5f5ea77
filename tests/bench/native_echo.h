// A native worker that answers each message, with its NIC and its peer, all in one thread: what the
// worker executes for a message can be told from what the others do.
#ifndef TESTS_BENCH_NATIVE_ECHO_H_
#define TESTS_BENCH_NATIVE_ECHO_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/arena/arena.h"
#include "lib/base/file_descriptor.h"
#include "lib/nic/nic.h"
#include "lib/verbs/verbs.h"
#include "supervisor/keeper/native_engine.h"
#include "tests/native/peer_connection.h"
#include "worker/worker_impl.h"

namespace baton::bench {

// A NIC in software that one thread has with its clients. While a client is set up, or asks it for
// something, a thread of its own turns it.
class ThreadedNic {
 public:
  static absl::StatusOr<std::unique_ptr<ThreadedNic>> Start();
  ~ThreadedNic() { Stop(); }

  absl::StatusOr<std::unique_ptr<verbs::Device>> OpenDevice();
  // From now on Progress() has to be called. Once.
  void Stop();
  bool Progress() { return nic_->Progress(); }

 private:
  std::unique_ptr<nic::Nic> nic_;
  FileDescriptor objects_, ids_;  // the ends for the device
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

// Thread-compatible.
class NativeEcho final : private Service, private keeper::EngineListener {
 public:
  static constexpr uint32_t kDepth = 64;
  static constexpr uint32_t kMessageBytes = 64;

  // With one connection, established.
  static absl::StatusOr<std::unique_ptr<NativeEcho>> Start();
  ~NativeEcho() override;

  // The peer sends so many messages, and all are in the worker's completion queue, and so are the
  // completions of its answers.
  void Ask(uint32_t messages);
  // One turn of the worker. It takes what is there: messages, to which it posts receives and
  // answers, or completions of answers.
  void Turn();
  // The NIC sends so many answers, and their completions are in the worker's completion queue.
  void Answer(uint32_t messages);

  uint64_t received() const { return received_; }
  uint64_t answered() const { return answered_; }

 private:
  absl::Status Open();
  absl::Status AddWorker();
  absl::Status Establish();
  void Settle();

  void OnEvent(std::string_view, const std::string&, uint64_t, int, int) override {}
  void OnFenced(uint64_t) override {}
  void OnDeviceLost(const absl::Status&) override {}

  absl::Status OnAdopt(Shard&) override { return absl::OkStatus(); }
  void OnCompletion(Shard& shard, const Completion& completion) override;

  std::unique_ptr<ThreadedNic> nic_;
  std::unique_ptr<verbs::Device> device_;
  std::optional<arena::Arena> arena_;
  std::unique_ptr<keeper::NativeEngine> engine_;
  std::unique_ptr<keeper::NativeDriver> driver_;
  FileDescriptor keeper_;  // the other end of the worker's session
  std::unique_ptr<WorkerImpl> worker_;
  std::unique_ptr<native::PeerConnection> peer_;
  bool established_ = false;
  uint64_t received_ = 0;
  uint64_t answered_ = 0;       // answers that have completed
  uint64_t peer_received_ = 0;  // answers that the peer has
};

}  // namespace baton::bench

#endif  // TESTS_BENCH_NATIVE_ECHO_H_
