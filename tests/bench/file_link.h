// A connection over which files are sent without Baton: the sender WRITEs them into the memory of
// its peer, which is a process of its own.
#ifndef TESTS_BENCH_FILE_LINK_H_
#define TESTS_BENCH_FILE_LINK_H_

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "lib/verbs/verbs.h"
#include "tests/lib/verbs/fabric.h"
#include "worker/examples/common/shared_memory.h"

namespace baton::bench {

// One end of a connection, with a device of its own. Thread-compatible.
class FileEnd {
 public:
  absl::Status Open(const verbs::testing::Fabric& fabric, uint32_t sends, uint32_t receives);

  verbs::Device& device() { return *device_; }
  verbs::QueuePair& queue_pair() { return *queue_pair_; }
  void Keep(std::unique_ptr<verbs::ConnectionId> id) { id_ = std::move(id); }

  // Runs the device and returns what has completed, valid until the next call. An error: one of
  // these has failed.
  absl::StatusOr<absl::Span<const verbs::Completion>> Turn();
  // The same, but sleeps for a while if there is nothing.
  absl::StatusOr<absl::Span<const verbs::Completion>> TurnOrSleep();
  std::optional<verbs::CmEvent> NextEvent();
  // Returns the next event if it is one of `type` and comes within a minute.
  absl::StatusOr<verbs::CmEvent> AwaitEvent(verbs::CmEventType type);

 private:
  std::unique_ptr<verbs::Device> device_;
  std::unique_ptr<verbs::CompletionQueue> queue_;
  std::unique_ptr<verbs::QueuePair> queue_pair_;
  std::unique_ptr<verbs::ConnectionId> id_;
  std::deque<verbs::CmEvent> events_;
  std::array<verbs::Completion, 32> taken_;
};

// The sender's end. Thread-compatible.
class FileLink {
 public:
  // Forks the peer, whose memory has room for `bytes`, and connects to it. REQUIRES: this process
  // has one thread, and has opened no device.
  static absl::StatusOr<std::unique_ptr<FileLink>> Start(const verbs::testing::Fabric& fabric,
                                                         uint64_t bytes);
  ~FileLink();  // ends the peer

  verbs::Device& device() { return end_.device(); }

  // Posts WRITEs of `bytes` of registered memory to the peer's memory at `offset`. Waits while too
  // many are under way.
  absl::Status Write(const uint8_t* from, uint32_t lkey, uint64_t bytes, uint64_t offset);
  // The WRITEs of this link are numbered from 1 on. This is the number of the last.
  uint64_t last_write() const { return posted_; }
  // Returns when this WRITE, and all before it, have completed.
  absl::Status AwaitWrite(uint64_t number);

  // Runs the device once. An end of the soft device that does not for some seconds is taken for
  // dead.
  absl::Status Turn() { return Take(); }

  // Lets the peer compare its memory with a file of `bytes`, and clear it. kDataLoss: it is
  // another.
  absl::Status Check(uint64_t bytes);

 private:
  explicit FileLink(examples::SharedMemory control) : control_(std::move(control)) {}
  absl::Status Fork(const verbs::testing::Fabric& fabric, uint64_t bytes);
  absl::Status Connect(const verbs::testing::Fabric& fabric, uint16_t port);
  absl::Status Take();

  examples::SharedMemory control_;
  FileEnd end_;
  std::unique_ptr<verbs::MemoryRegion> control_region_;
  pid_t peer_ = 0;
  uint64_t remote_address_ = 0;
  uint32_t rkey_ = 0;
  uint64_t posted_ = 0, completed_ = 0;
  uint64_t answers_ = 0;
};

}  // namespace baton::bench

#endif  // TESTS_BENCH_FILE_LINK_H_
