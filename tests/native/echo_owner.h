// Owner and driver of a service's only shard in one thread, for as long as it lives: answers each
// message. Its state, a count of messages on each connection, changes with the same commit as the
// acknowledgement, the reply and the next receive.
#ifndef TESTS_NATIVE_ECHO_OWNER_H_
#define TESTS_NATIVE_ECHO_OWNER_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/arena/arena.h"
#include "lib/driver/ownership.h"
#include "lib/driver/queue_driver.h"
#include "tests/lib/driver/commit_writer.h"

namespace baton::native {

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
  // Of the open transaction, by connection.
  std::vector<uint64_t> counts_;
  std::vector<uint64_t> send_ends_;
};

}  // namespace baton::native

#endif  // TESTS_NATIVE_ECHO_OWNER_H_
