// Executes a controller's commands other than I/O. It uses only the controller's state, which
// outlives the process. It builds the data that it returns anew each time.
#ifndef WORKER_EXAMPLES_NVMED_CONTROLLER_H_
#define WORKER_EXAMPLES_NVMED_CONTROLLER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "worker/examples/nvmed/identify.h"
#include "worker/examples/nvmed/nvme_spec.h"
#include "worker/examples/nvmed/registry.h"
#include "worker/examples/nvmed/state.h"
#include "worker/examples/nvmed/target.h"

namespace baton::nvmed {

// How a command ends.
struct Answer {
  StatusCode status = StatusCode::kSuccess;
  uint64_t result = 0;
  bool held = false;  // answered later: an Asynchronous Event Request
  // Held requests that end with this command. If `answer_released`, each is answered with
  // kAbortRequested, else none is answered.
  uint32_t released = 0;
  bool answer_released = false;
  HeldEvent release[kMaxHeldEvents] = {};
};

inline Answer Refuse(StatusCode status) {
  Answer answer;
  answer.status = status;
  return answer;
}

inline Answer Return(uint64_t result) {
  Answer answer;
  answer.result = result;
  return answer;
}

// Counters of what a controller's queues have done.
struct Totals {
  uint64_t reads = 0, writes = 0, bytes_read = 0, bytes_written = 0;
};

// The options that all controllers of a target share. They outlive the controllers.
struct ControllerOptions {
  uint16_t queue_entries = 128;
  uint16_t io_queues = 64;
  uint32_t max_transfer_bytes = 0;
  uint32_t in_capsule_bytes = 0;
  std::string firmware;  // version of the program, at most 8 characters
  std::string address;   // for the discovery log
  uint16_t port = 0;
};

// Thread-compatible. A view, which is made for each command.
class Controller {
 public:
  // All arguments must outlive the view. `state` is in `registry`.
  Controller(ControllerState& state, const ControllerOptions& options, Target& target,
             Registry& registry)
      : state_(state), options_(options), target_(target), registry_(registry) {}

  // Returns nullptr for a discovery controller, or if the configuration does not have the subsystem
  // any more.
  Subsystem* subsystem() const;
  bool enabled() const { return CcEnable(state_.configuration) && (state_.status & kCstsReady); }

  // Executes a command of the admin queue that takes no data from the host. `data` receives what
  // the command returns; its length is DataLength's. `slot`: of the command's capsule, for commands
  // that are held.
  Answer Execute(const SubmissionEntry& command, uint16_t slot, const Totals& totals,
                 absl::Span<uint8_t> data);

  // Property Get and Set, on whichever queue the specification allows them.
  Answer GetProperty(const SubmissionEntry& command) const;
  Answer SetProperty(const SubmissionEntry& command);

  // Records that the namespaces, as hosts see them, have changed.
  void NoteNamespacesChanged();
  // Returns true if the namespaces changed, the host wants that event, and it has sent a request
  // that can be answered with it.
  bool HasEvent() const;
  // Returns that request and the result to answer it with. Returns false if HasEvent() is false.
  bool TakeEvent(HeldEvent* request, uint64_t* result);

  void NoteError(uint16_t queue_id, const SubmissionEntry& command, uint16_t status);

 private:
  Answer Identify(const SubmissionEntry& command, absl::Span<uint8_t> data) const;
  Answer GetLogPage(const SubmissionEntry& command, const Totals& totals, absl::Span<uint8_t> data);
  Answer GetFeatures(const SubmissionEntry& command, absl::Span<uint8_t> data) const;
  Answer SetFeatures(const SubmissionEntry& command);
  Answer HoldEvent(const SubmissionEntry& command, uint16_t slot);
  Answer Abort(const SubmissionEntry& command);
  Answer KeepAlive();

  SubsystemDescription DescribeSubsystem() const;
  ControllerDescription DescribeController() const;
  std::vector<uint8_t> DiscoveryLog() const;
  std::vector<ErrorLogEntry> ErrorLog() const;

  ControllerState& state_;
  const ControllerOptions& options_;
  Target& target_;
  Registry& registry_;
};

}  // namespace baton::nvmed

#endif  // WORKER_EXAMPLES_NVMED_CONTROLLER_H_
