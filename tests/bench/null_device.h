// A verbs device that does nothing at once: each send completes as soon as it is posted. What is
// measured over it is Baton alone.
//
// Completions are written into room that was made ahead, so that it costs as little as such a thing
// can. It may have a peer, which answers each message: then each send request, of whatever kind,
// is a message to it, and each of its messages takes the oldest receive. Thread-safety: that of
// verbs::Device.
#ifndef TESTS_BENCH_NULL_DEVICE_H_
#define TESTS_BENCH_NULL_DEVICE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string_view>
#include <thread>
#include <vector>

#include "lib/base/file_descriptor.h"
#include "lib/verbs/verbs.h"
#include "tests/lib/verbs/fake_device.h"

namespace baton::bench {

// Counts of messages; each has a cache line to itself.
struct NullWire {
  alignas(64) std::atomic<uint64_t> to_peer{0};
  alignas(64) std::atomic<uint64_t> to_us{0};
  alignas(64) std::atomic<bool> asleep{false};  // who polls us
  FileDescriptor wake;                          // an eventfd, for when it is
};

enum class NullPeerKind { kNone, kThread, kAtOnce };

// Answers each message in a thread of its own. Polls, and yields when there is none, as a client
// that is in a hurry.
class NullPeer {
 public:
  explicit NullPeer(NullWire* wire) : wire_(*wire), thread_([this] { Run(); }) {}
  ~NullPeer();

 private:
  void Run();

  NullWire& wire_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

class NullCompletionQueue final : public verbs::CompletionQueue {
 public:
  NullCompletionQueue(uint32_t entries, NullWire* wire);
  absl::StatusOr<int> Poll(absl::Span<verbs::Completion> completions) override;
  absl::Status RequestNotification() override;
  void AddReceive(uint64_t wr_id) { receives_[posted_++ & mask_] = wr_id; }
  // There is room: the driver posts no more than the queue holds.
  void AddSends(absl::Span<const verbs::SendRequest> requests);

 private:
  std::vector<verbs::Completion> ring_;
  uint64_t mask_;
  uint64_t head_ = 0, tail_ = 0;
  NullWire& wire_;
  std::vector<uint64_t> receives_;  // with a peer; there is room, likewise
  uint64_t posted_ = 0, received_ = 0;
};

class NullDevice final : public verbs::testing::FakeDevice {
 public:
  // `pins`: it locks in memory each page that is registered, as a device's driver pins it, on any
  // thread.
  explicit NullDevice(NullPeerKind peer, bool pins = false);

  // From now on sends stay outstanding, or complete as soon as they are posted.
  void SetHolding(bool holding) { holding_ = holding; }
  bool holding() const { return holding_; }

  // So many peers ask for a connection with the one listener.
  void AddRequests(uint32_t count) { requests_ += count; }

  std::string_view name() const override { return "null"; }
  absl::StatusOr<std::unique_ptr<verbs::MemoryRegion>> RegisterMemory(void* address, size_t length,
                                                                      uint32_t access) override;
  bool registers_on_any_thread() const override { return pins_; }
  absl::StatusOr<std::unique_ptr<verbs::CompletionQueue>> CreateCompletionQueue(
      uint32_t entries) override;
  absl::StatusOr<std::unique_ptr<verbs::QueuePair>> CreateQueuePair(
      const verbs::QueuePairOptions& options) override;
  bool NextEvent(verbs::CmEvent* event) override;
  bool NextDeviceEvent(verbs::DeviceEvent*) override { return false; }
  void Progress() override;
  int event_fd() const override { return wire_.wake.get(); }

 private:
  NullWire wire_;
  const NullPeerKind kind_;
  std::unique_ptr<NullPeer> peer_;  // a thread's
  const bool pins_;
  bool holding_ = false;
  uint32_t requests_ = 0;
  uint32_t queue_pairs_ = 0;
};

}  // namespace baton::bench

#endif  // TESTS_BENCH_NULL_DEVICE_H_
