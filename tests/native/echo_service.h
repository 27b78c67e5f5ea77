// A service whose queues are driven by processes that are forked from the one that opened the
// device.
#ifndef TESTS_NATIVE_ECHO_SERVICE_H_
#define TESTS_NATIVE_ECHO_SERVICE_H_

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/arena/arena.h"
#include "lib/driver/ownership.h"
#include "lib/driver/queue_driver.h"
#include "lib/native/local_driver.h"
#include "lib/nic/soft_options.h"
#include "lib/verbs/verbs.h"
#include "tests/lib/driver/commit_writer.h"
#include "tests/native/message.h"

namespace baton::native {

// Owners report this to the parent. One at a time writes.
struct OwnerRecord {
  std::atomic<uint64_t> took_over = 0;  // owners that have recovered
  std::atomic<uint64_t> answered = 0;   // messages, by all
  std::atomic<uint64_t> turns = 0;      // of the present one's loop, since it took over
  driver::RecoveryCounters recovery;    // of the present one, as of its last turn
  char failure[512] = {};               // why one has ended by itself; empty: none has
};

struct EchoOptions {
  uint32_t connections = 4;
  uint32_t depth = 16;                      // of each queue; the peer's window is at most that
  bool sleeps = true;                       // owners wait for notifications; otherwise they yield
  verbs::soft::SoftDeviceOptions nic = {};  // of the soft device under test
};

// The parent does what `baton-driver` does: it makes device, arena and connections, and then drives
// nothing. Each child is ready to take over, as driver and as worker in one, when the one before is
// dead.
class EchoService {
 public:
  EchoService(const std::string& host, const EchoOptions& options);
  ~EchoService();  // kills what runs

  uint16_t port() const { return port_; }
  // Turns until all connections are established.
  bool Establish();

  // A child that waits for its turn. Its index.
  size_t Fork();
  size_t children() const { return children_.size(); }
  // Makes it the owner. The one before is dead.
  void Begin(size_t child);
  void Kill(size_t child);  // and waits for its end
  pid_t pid(size_t child) const { return children_[child].pid; }

  OwnerRecord& record() const { return *record_.get(); }
  arena::Arena& arena() { return *arena_; }
  // Connections that are not established any more.
  uint32_t Ended() const;

 private:
  struct Child {
    pid_t pid = -1;
    int go = -1;  // a byte there makes it the owner
  };

  [[noreturn]] void Wait(int go, uint64_t worker_id);

  const EchoOptions options_;
  SharedPage<OwnerRecord> record_;
  std::unique_ptr<native::LocalObserver> observer_;
  std::unique_ptr<verbs::Device> device_;
  std::optional<arena::Arena> arena_;
  std::unique_ptr<native::LocalDriver> local_;
  uint16_t port_ = 0;
  std::vector<Child> children_;
};

// Owner and driver of a service's only shard in one thread, for as long as it lives: answers each
// message. Its state, a count of messages on each connection, changes with the same commit as the
// acknowledgement, the reply and the next receive.
class EchoOwner {
 public:
  EchoOwner(arena::Arena* arena, driver::QueueDriver* driver, uint64_t worker_id);

  // Ends the epoch of who was the owner, is dead, and had this id, and begins one.
  absl::Status Adopt();

  // The first commit on a connection: so many receives.
  void Accept(uint32_t connection);
  // Moves completions to the log and answers what there is. Whether there was anything.
  absl::StatusOr<bool> Turn();
  uint64_t answered() const { return answered_; }  // messages, since it began

  static uint64_t ReceiveOffset(uint32_t connection, uint32_t depth, uint64_t sequence);
  static uint64_t SendOffset(uint32_t connection, uint32_t depth, uint64_t sequence);

 private:
  // Stages the answer of one message. False: there is no room for it now.
  bool Answer(const arena::CompletionEntry& entry);
  absl::Status Commit();
  uint64_t CommittedCount(uint32_t connection) const;

  arena::Arena* const arena_;
  driver::QueueDriver* const driver_;
  const uint64_t worker_id_;
  const uint32_t depth_;
  driver::Ownership ownership_;
  driver::testing::CommitWriter writer_;
  uint64_t answered_ = 0;
  // The values in the open transaction, by connection.
  std::vector<uint64_t> counts_;
  std::vector<uint64_t> send_ends_;
};

}  // namespace baton::native

#endif  // TESTS_NATIVE_ECHO_SERVICE_H_
