// The host's side of a queue of NVMe over Fabrics on RDMA, on the seam of verbs, and stricter than
// hosts are, so that nothing that was lost or repeated goes unseen:
//   - each command is answered once: a second answer, and one that nobody waits for, are findings;
//   - the queue head in an answer counts the answers of the queue;
//   - data are spoilt as soon as they are no longer needed: what is READ or WRITten once more shows
//     in the namespace, or when the slot is used again;
//   - a key is invalidated when that was asked, and no other one is.
// A finding is for ever: every call from then on returns it. Every wait is bounded.
// Thread-safety: none; a fabric and its queues are used by one thread at a time.
#ifndef TESTS_WORKER_EXAMPLES_NVMED_HOST_QUEUE_H_
#define TESTS_WORKER_EXAMPLES_NVMED_HOST_QUEUE_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "lib/verbs/verbs.h"
#include "worker/examples/common/shared_memory.h"
#include "worker/examples/nvmed/nvme_spec.h"

namespace baton::nvmed {

class HostQueue;

// The device that the queues of a host share. Outlives them.
class HostFabric {
 public:
  static absl::StatusOr<std::unique_ptr<HostFabric>> Open();

  verbs::Device& device() { return *device_; }
  // Whether peers can invalidate keys here.
  bool invalidates() const { return invalidates_; }

  // Takes what has come, without waiting. Returns the first finding of any queue.
  absl::Status Look();
  // `what` completes "waited in vain for ...".
  absl::Status WaitFor(const std::string& what, const std::function<bool()>& condition);

 private:
  friend class HostQueue;
  HostFabric(std::unique_ptr<verbs::Device> device, bool invalidates)
      : device_(std::move(device)), invalidates_(invalidates) {}

  std::unique_ptr<verbs::Device> device_;
  const bool invalidates_;
  std::set<HostQueue*> queues_;
};

// The data of a command.
struct Transfer {
  enum class Kind : uint8_t { kNone, kInCapsule, kToController, kToHost };
  Kind kind = Kind::kNone;
  std::vector<uint8_t> data = {};  // kInCapsule, kToController
  uint32_t length = 0;             // kToHost
  bool invalidate_key = false;     // kToController, kToHost
  // In the place of what the above makes, for commands that are wrong.
  std::function<void(SubmissionEntry*)> spoil = {};
};

struct Response {
  uint16_t cid = 0;
  StatusCode status = StatusCode::kSuccess;
  bool do_not_retry = false;
  uint64_t result = 0;
  bool invalidated = false;        // its key
  std::vector<uint8_t> data = {};  // kToHost

  bool ok() const { return status == StatusCode::kSuccess; }
};

struct HostQueueOptions {
  uint16_t port = 0;
  uint16_t id = 0;
  uint16_t entries = 32;
  uint32_t data_bytes = 128 * 1024;  // of a command, at most
  uint32_t in_capsule_bytes = 4096;  // likewise
  std::string private_data = {};     // empty: the transport's
};

class HostQueue {
 public:
  // Connected as RDMA has it; the Connect command is the caller's. kAborted: the target has
  // rejected it, with the status that the message has.
  static absl::StatusOr<std::unique_ptr<HostQueue>> Open(HostFabric& fabric,
                                                         const HostQueueOptions& options);
  ~HostQueue();

  uint16_t id() const { return options_.id; }
  // Commands that may be submitted now.
  size_t room() const { return free_.size(); }
  size_t outstanding() const { return commands_.size(); }
  uint64_t answered() const { return answered_; }
  bool connected() const { return end_.empty(); }
  // The host does not look at queue heads (Connect asked for that).
  void DisableFlowControl() { flow_control_ = false; }
  // After a reset: commands that were held are never answered.
  void ForgetHeld(uint16_t cid);

  // Returns its command id, which no other command of the queue has for long.
  absl::StatusOr<uint16_t> Submit(const SubmissionEntry& command, const Transfer& transfer = {});
  // Any bytes in the place of a capsule.
  absl::Status SendBytes(absl::Span<const uint8_t> bytes);

  // The next answer that has come and was not taken, if there is one.
  std::optional<Response> Take();
  // Waits for the answer to this command. kUnavailable: the connection has ended instead.
  absl::StatusOr<Response> Await(uint16_t cid);
  absl::StatusOr<Response> Execute(const SubmissionEntry& command, const Transfer& transfer = {});

  absl::Status Disconnect();
  absl::Status WaitUntilDisconnected();

 private:
  friend class HostFabric;
  struct Command {
    uint16_t slot = 0;
    Transfer::Kind kind = Transfer::Kind::kNone;
    uint32_t length = 0;
    bool invalidate_key = false;
  };

  HostQueue(HostFabric& fabric, const HostQueueOptions& options, examples::SharedMemory memory);
  absl::Status Connect();
  absl::Status PostReceive(uint16_t index);
  absl::Status PostSend(uint16_t slot, uint32_t bytes);
  absl::Status Register(uint16_t slot);
  void PutData(const Transfer& transfer, Command* command, SubmissionEntry* entry);
  absl::Status Look();
  absl::Status OnResponse(const CompletionEntry& entry, std::optional<uint32_t> invalidated);
  absl::Status CheckKey(const Command& command, const Response& response,
                        std::optional<uint32_t> invalidated);
  absl::Status CheckSpoilt(uint16_t slot);
  void OnEvent(const verbs::CmEvent& event);
  absl::Status Find(const absl::Status& finding);

  uint8_t* capsule(uint16_t slot) const;
  uint8_t* response(uint16_t index) const;
  uint8_t* data(uint16_t slot) const;
  uint16_t receives() const { return static_cast<uint16_t>(options_.entries + 8); }

  HostFabric& fabric_;
  const HostQueueOptions options_;
  examples::SharedMemory memory_;
  std::unique_ptr<verbs::MemoryRegion> messages_;
  std::vector<std::unique_ptr<verbs::MemoryRegion>> regions_;  // by slot: its data
  std::unique_ptr<verbs::CompletionQueue> completions_;
  std::unique_ptr<verbs::QueuePair> queue_pair_;
  std::unique_ptr<verbs::ConnectionId> connection_;

  std::vector<uint16_t> free_;            // slots
  std::vector<uint32_t> spoilt_;          // by slot: bytes that have to be as we left them
  std::map<uint16_t, Command> commands_;  // outstanding, by id
  std::deque<Response> taken_;            // answered, and not given to the caller yet
  std::set<uint16_t> given_;              // ids that have been answered
  uint16_t next_cid_ = 1;
  uint64_t answered_ = 0;
  bool flow_control_ = true;
  bool established_ = false, disconnected_ = false;
  std::optional<uint16_t> rejected_;  // with this status
  std::string end_;                   // why it has ended
  absl::Status finding_;
};

}  // namespace baton::nvmed

#endif  // TESTS_WORKER_EXAMPLES_NVMED_HOST_QUEUE_H_
