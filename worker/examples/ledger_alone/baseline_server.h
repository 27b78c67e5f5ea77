// The ledger without Baton: one process owns device, queue pairs and accounts, and they die with
// it. Its clients connect anew and resume their accounts (ledger_protocol.h).
//
// It is as quick to take over as such a service can be: everything that needs no connection is made
// beforehand (device, registered and touched memory, a queue pair with its receives posted for
// every connection to come), and it listens as soon as the former process has gone.
#ifndef WORKER_EXAMPLES_LEDGER_ALONE_BASELINE_SERVER_H_
#define WORKER_EXAMPLES_LEDGER_ALONE_BASELINE_SERVER_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"
#include "lib/verbs/verbs.h"
#include "worker/examples/common/shared_memory.h"
#include "worker/examples/ledger/ledger_account.h"

namespace baton::ledger {

struct BaselineOptions {
  verbs::Address listen;
  uint32_t connections = 64;  // at once, at most
  uint32_t window = 32;       // receives posted for each
  uint32_t message_bytes = 64;
  uint16_t version = 1;
};

class BaselineServer {
 public:
  static absl::StatusOr<std::unique_ptr<BaselineServer>> Create(
      std::unique_ptr<verbs::Device> device, const BaselineOptions& options);
  ~BaselineServer();

  // Waits until process `pid`, seen through `pidfd`, has ended.
  static absl::Status WaitForEnd(const FileDescriptor& pidfd);

  // Takes the port; while another process has it, tries again without a pause, for at most 10 s.
  absl::StatusOr<uint16_t> Listen();

  // Serves until Stop.
  absl::Status Run();
  void Stop();  // any thread, and signal handlers
  // Any thread, and signal handlers. From now on replies tell peers to go on elsewhere.
  void TellToMove() { moving_ = true; }

 private:
  struct Session;
  BaselineServer(std::unique_ptr<verbs::Device> device, const BaselineOptions& options,
                 examples::SharedMemory memory);

  absl::Status Prepare();
  absl::Status Renew(Session& session);
  absl::Status PostReceive(Session& session, uint32_t slot);
  absl::StatusOr<bool> Turn();             // returns whether it may sleep
  absl::StatusOr<bool> PollCompletions();  // returns whether there were any
  absl::Status HandleEvents();
  absl::Status OnConnectRequest(std::unique_ptr<verbs::ConnectionId> id);
  absl::Status OnRequest(Session& session, uint32_t slot, uint32_t length);
  uint64_t RequestOffset(const Session& session, uint32_t slot) const;
  uint64_t ReplyOffset(const Session& session, uint32_t slot) const;

  const BaselineOptions options_;
  const uint32_t reply_slots_;
  std::unique_ptr<verbs::Device> device_;
  examples::SharedMemory memory_;
  std::unique_ptr<verbs::MemoryRegion> region_;
  std::unique_ptr<verbs::CompletionQueue> queue_;
  std::vector<std::unique_ptr<Session>> sessions_;
  std::vector<Session*> free_;
  std::unique_ptr<verbs::Listener> listener_;
  FileDescriptor stop_event_;
  std::atomic<bool> stopped_ = false, moving_ = false;
};

}  // namespace baton::ledger

#endif  // WORKER_EXAMPLES_LEDGER_ALONE_BASELINE_SERVER_H_
