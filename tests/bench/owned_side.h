// A side of `./run bench native`: an owner of queues in a process of its own, with a processor of
// its own, and its peer in our thread.
//
// Our thread is everything else: the peer, the owner's NIC and, unless that is the peer's too, the
// peer's. So all that differs between two sides of one wire is the owner.
#ifndef TESTS_BENCH_OWNED_SIDE_H_
#define TESTS_BENCH_OWNED_SIDE_H_

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/verbs/verbs.h"
#include "tests/bench/queue_owner.h"

namespace baton::bench {

struct Exchanged {
  double p50_us = 0;  // of a message, to its answer
  double p99_us = 0;
  // The median of slices of kSlice messages: the time of others that take a processor for longer
  // than a slice is not in it. Of fewer messages it is that of all.
  double per_second = 0;
  static constexpr uint32_t kSlice = 128;
};

// The peer polls, on verbs.h, in the thread that turns the NIC. Thread-compatible.
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

enum class OwnerKind : uint8_t { kRaw, kLibrary, kNative, kBrokered };
inline constexpr std::array<OwnerKind, 4> kOwnerKinds = {OwnerKind::kRaw, OwnerKind::kLibrary,
                                                         OwnerKind::kNative, OwnerKind::kBrokered};
const char* NameOf(OwnerKind kind);

// kLoopback: both queue pairs are on one NIC, which hands messages from one to the other. kMemory,
// kTcp: each is on a NIC of its own, and frames go through memory or over TCP.
enum class Wire : uint8_t { kLoopback, kMemory, kTcp };

struct OwnedSideOptions {
  OwnerKind kind = OwnerKind::kRaw;
  Wire wire = Wire::kLoopback;
  int processor = -1;  // of the owner's processes; -1: any
};

// Thread-compatible. One at a time, to be started while the process has no other thread.
class OwnedSide {
 public:
  // With an established connection. The wires of kLibrary: kLoopback.
  static absl::StatusOr<std::unique_ptr<OwnedSide>> Start(const OwnedSideOptions& options);
  ~OwnedSide();
  OwnedSide(const OwnedSide&) = delete;
  OwnedSide& operator=(const OwnedSide&) = delete;

  // See OwnerPeer.
  absl::StatusOr<Exchanged> Exchange(uint32_t count, uint32_t window, uint64_t pause_ns = 0);
  // The same. Returns how long the owner's turns took that had something to do, for each message,
  // in nanoseconds. Turns that take longer than kLongestTurnNs do not count: others had the
  // processor meanwhile. Brokered: the worker's turns, not the engine's.
  static constexpr uint64_t kLongestTurnNs = 50'000;
  absl::StatusOr<double> MeasureTurns(uint32_t count, uint32_t window);

 private:
  struct Meeting;  // in memory that both processes share

  explicit OwnedSide(const OwnedSideOptions& options) : options_(options) {}
  absl::Status Open();
  absl::Status Fork(NicClient* owner);
  [[noreturn]] void RunOwner(NicSockets sockets);
  absl::Status Own(NicSockets sockets);
  absl::StatusOr<std::unique_ptr<verbs::Device>> OpenPeerDevice(NicSockets sockets);
  absl::Status CheckOwner();

  const OwnedSideOptions options_;
  Meeting* meeting_ = nullptr;
  pid_t owner_ = -1;
  std::unique_ptr<ThreadedNic> nic_;
  std::unique_ptr<OwnerPeer> peer_;
};

}  // namespace baton::bench

#endif  // TESTS_BENCH_OWNED_SIDE_H_
