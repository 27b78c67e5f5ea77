// The peer of an owner of queues: it polls, on verbs.h, in the thread that turns the NIC.
#ifndef TESTS_BENCH_OWNER_PEER_H_
#define TESTS_BENCH_OWNER_PEER_H_

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/verbs/verbs.h"
#include "tests/bench/echo_queues.h"

namespace baton::bench {

struct Exchanged {
  double p50_us = 0;  // of a message, to its answer
  double p99_us = 0;
  // The median of slices of kSlice messages: the time of others that take a processor for longer
  // than a slice is not in it. Of fewer messages it is that of all.
  double per_second = 0;
  static constexpr uint32_t kSlice = 128;
};

// Thread-compatible.
class OwnerPeer {
 public:
  // Waits until the connection is established. Another thread turns the owner's NIC meanwhile.
  // `give_up`: asked now and then; an error ends the wait.
  static absl::StatusOr<std::unique_ptr<OwnerPeer>> Connect(
      std::unique_ptr<verbs::Device> device, uint16_t port,
      const std::function<absl::Status()>& give_up);

  // Sends `count` messages and takes their answers, `window` of them under way. `turn` is called
  // before each look at the queues: it turns the NIC. After each answer it goes on turning for
  // `pause_ns` before the next message is sent. An answer that is not its message is an error.
  // REQUIRES: 1 <= window <= kEchoDepth / 2.
  absl::StatusOr<Exchanged> Exchange(uint32_t count, uint32_t window, uint64_t pause_ns,
                                     const std::function<void()>& turn);

  verbs::Device& device() { return *device_; }

 private:
  explicit OwnerPeer(std::unique_ptr<verbs::Device> device) : device_(std::move(device)) {}
  void Ask();
  absl::StatusOr<Exchanged> Summarize(uint64_t all_ns);
  absl::Status TakeAnswer(const verbs::Completion& receive, uint64_t now);

  const std::unique_ptr<verbs::Device> device_;
  std::unique_ptr<EchoQueues> queues_;
  std::unique_ptr<verbs::ConnectionId> id_;
  uint64_t sent_ = 0;
  uint64_t received_ = 0;
  std::array<uint64_t, EchoQueues::kReceiveBuffers> sent_ns_ = {};  // by number
  std::vector<uint32_t> took_ns_;
  std::vector<uint64_t> slices_ns_;
};

}  // namespace baton::bench

#endif  // TESTS_BENCH_OWNER_PEER_H_
