// An owner of queues that answers each message, with its NIC and its peer, all in one thread: what
// the owner executes for a message can be told from what the others do.
#ifndef TESTS_BENCH_NATIVE_ECHO_H_
#define TESTS_BENCH_NATIVE_ECHO_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/bench/queue_owner.h"
#include "tests/native/checking_peer.h"

namespace baton::bench {

// Thread-compatible.
class NativeEcho final {
 public:
  // With one connection, established. The owner is a native worker, or a raw loop.
  static absl::StatusOr<std::unique_ptr<NativeEcho>> Start();
  static absl::StatusOr<std::unique_ptr<NativeEcho>> StartRaw();

  // The peer sends so many messages, and all are in the owner's completion queue, and so are the
  // completions of its answers.
  void Ask(uint32_t messages);
  // One turn of the owner. It takes what is there: messages, to which it posts receives and
  // answers, or completions of answers.
  void Turn();
  // The NIC sends so many answers, and their completions are in the owner's completion queue.
  void Answer(uint32_t messages);

  uint64_t received() const { return owner_->received(); }
  uint64_t answered() const { return owner_->answered(); }

 private:
  template <typename Owner>
  static absl::StatusOr<std::unique_ptr<NativeEcho>> StartWith();
  absl::Status Establish();
  void Settle();

  // The NIC is gone when the device is destroyed, and answers none of its calls.
  std::unique_ptr<ThreadedNic> nic_;
  std::unique_ptr<QueueOwner> owner_;
  std::unique_ptr<native::PeerConnection> peer_;
  uint64_t peer_received_ = 0;  // answers that the peer has
};

}  // namespace baton::bench

#endif  // TESTS_BENCH_NATIVE_ECHO_H_
