// Two ways to a connection with a queue pair of the same NIC, without a connection manager: each
// side stores the number of its queue pair where the other finds it.
#ifndef TESTS_BENCH_LOOPBACK_H_
#define TESTS_BENCH_LOOPBACK_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"
#include "lib/verbs/verbs.h"
#include "tests/bench/queue_owner.h"
#include "tests/lib/verbs/forwarding_device.h"

namespace baton::bench {

// In memory that both sides share. 0: there is none yet.
struct QueuePairNumbers {
  std::atomic<uint32_t> listener{0};
  std::atomic<uint32_t> connector{0};
};

// A device whose one connection is to a queue pair of the same NIC.
//
// It listens, or it connects, once. Listen() waits until the other side connects, so the other side
// must not wait for it before. It reports no disconnection. Thread-compatible.
class LoopbackDevice final : public verbs::testing::ForwardingDevice {
 public:
  // `numbers` outlives it.
  static absl::StatusOr<std::unique_ptr<verbs::Device>> Open(NicSockets sockets,
                                                             QueuePairNumbers* numbers);

  absl::StatusOr<std::unique_ptr<verbs::Listener>> Listen(const verbs::Address& address,
                                                          int backlog) override;
  absl::StatusOr<std::unique_ptr<verbs::ConnectionId>> Connect(
      const verbs::Address& address, verbs::QueuePair* queue_pair,
      const verbs::ConnectionParameters& parameters) override;
  bool NextEvent(verbs::CmEvent* event) override;
  int event_fd() const override { return epoll_.get(); }

 private:
  class Id;
  enum class Phase : uint8_t { kNone, kListens, kRequested, kConnects, kAccepted, kEstablished };

  LoopbackDevice(std::unique_ptr<verbs::Device> inner, FileDescriptor file,
                 QueuePairNumbers* numbers)
      : ForwardingDevice(std::move(inner)), file_(std::move(file)), numbers_(numbers) {}

  absl::Status WatchEvents();
  absl::Status Accept(verbs::QueuePair* queue_pair);
  absl::Status ConnectTo(uint32_t peer);

  const FileDescriptor file_;  // a copy of the socket that the objects belong to
  QueuePairNumbers* const numbers_;
  FileDescriptor has_event_;  // eventfd: NextEvent() has one
  FileDescriptor epoll_;      // of that and of the inner device's
  Phase phase_ = Phase::kNone;
  verbs::Listener* listener_ = nullptr;
  Id* id_ = nullptr;
  verbs::QueuePair* queue_pair_ = nullptr;
};

// The loop of RawOwner on Debian's unmodified libibverbs and libmlx5.
//
// libmlx5 stores its doorbells where the NIC does not look. After each list of sends the owner sets
// a bit that makes the NIC look at the records of all queues: an atomic operation, as our driver's
// doorbell is. There is no connection manager, so the peer has to be on the same NIC.
//
// One at a time in a process, in which it answers system calls. `numbers` outlives it.
absl::StatusOr<std::unique_ptr<QueueOwner>> StartLibraryOwner(NicSockets sockets,
                                                              QueuePairNumbers* numbers);

}  // namespace baton::bench

#endif  // TESTS_BENCH_LOOPBACK_H_
