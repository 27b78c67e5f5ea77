// What a controller does with commands that are no I/O: on its state, which outlives the process,
// and on nothing else. Data that it returns is made anew each time.
#ifndef WORKER_EXAMPLES_NVMED_CONTROLLER_H_
#define WORKER_EXAMPLES_NVMED_CONTROLLER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "worker/examples/nvmed/answer.h"
#include "worker/examples/nvmed/identify.h"
#include "worker/examples/nvmed/nvme_spec.h"
#include "worker/examples/nvmed/registry.h"
#include "worker/examples/nvmed/state.h"
#include "worker/examples/nvmed/target.h"

namespace baton::nvmed {

// Counters of what a controller's queues have done.
struct Totals {
  uint64_t reads = 0, writes = 0, bytes_read = 0, bytes_written = 0;
};

// What all controllers of a target have in common. Outlives them.
struct ControllerOptions {
  uint16_t queue_entries = 128;
  uint16_t io_queues = 64;
  uint32_t max_transfer_bytes = 0;
  uint32_t in_capsule_bytes = 0;
  std::string firmware;  // version of the program, at most 8 characters
  std::string address;   // for the discovery log
  uint16_t port = 0;
};

// Thread-compatible. A view: made for each command.
class Controller {
 public:
  // All of them outlive it. The state is the registry's.
  Controller(ControllerState& state, const ControllerOptions& options, Target& target,
             Registry& registry)
      : state_(state), options_(options), target_(target), registry_(registry) {}

  // nullptr: a discovery controller's, or one that the configuration has no more.
  Subsystem* subsystem() const;
  bool enabled() const { return CcEnable(state_.configuration) && (state_.status & kCstsReady); }

  // A command of the admin queue that has no data of the host's. `data`: what it returns, as long
  // as DataLength says; filled in on success. `slot`: of its capsule, for those that are held.
  Answer Execute(const SubmissionEntry& command, uint16_t slot, const Totals& totals,
                 absl::Span<uint8_t> data);

  // Property Get and Set, on whichever queue the specification allows them.
  Answer GetProperty(const SubmissionEntry& command) const;
  Answer SetProperty(const SubmissionEntry& command);

  // What hosts see of the namespaces is not what it was.
  void NoteNamespacesChanged();
  // An event that the host wants to hear of has happened, and there is a request to answer with it.
  bool HasEvent() const;
  // That request; false: HasEvent is.
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
