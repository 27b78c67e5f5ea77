// Executes and answers the commands whose data are here.
#ifndef WORKER_EXAMPLES_NVMED_COMMAND_SETS_H_
#define WORKER_EXAMPLES_NVMED_COMMAND_SETS_H_

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "worker/examples/nvmed/associations.h"
#include "worker/examples/nvmed/controller.h"
#include "worker/examples/nvmed/jobs.h"
#include "worker/examples/nvmed/resources.h"
#include "worker/examples/nvmed/transaction.h"
#include "worker/worker.h"

namespace baton::nvmed {

// Answers commands. Thread-compatible.
class Responder {
 public:
  // All arguments must outlive this object.
  Responder(Resources& resources, Transaction& transaction, Associations& associations)
      : resources_(resources), transaction_(transaction), associations_(associations) {}

  // WRITEs `data` to the host if the command succeeded, and answers the command. `chunk`: in which
  // `data` are. It is given back when the host has them.
  void Finish(const Step& step, const Answer& answer, std::optional<Buffer> data = std::nullopt,
              std::optional<uint32_t> chunk = std::nullopt);
  // Answers the Asynchronous Event Requests of controllers that have an event.
  void TellChanges();

 private:
  void Respond(Queue& queue, uint16_t slot, const CompletionEntry& answer, const DataPointer& data,
               bool last);

  Resources& resources_;
  Transaction& transaction_;
  Associations& associations_;
};

// Executes the Fabrics commands of all queues, and the commands of admin queues. Thread-compatible.
class AdminCommandSet {
 public:
  // All arguments must outlive this object.
  AdminCommandSet(Resources& resources, PendingCommands& pending, Associations& associations,
                  Responder& responder)
      : resources_(resources),
        pending_(pending),
        associations_(associations),
        responder_(responder) {}

  // `data`: the host's.
  void PerformFabrics(const Step& step, absl::Span<const uint8_t> data);
  // `controller`: of the step's queue, an admin queue.
  void Perform(const Step& step, ControllerState& controller);

 private:
  void PerformConnect(const Step& step, absl::Span<const uint8_t> data);

  Resources& resources_;
  PendingCommands& pending_;
  Associations& associations_;
  Responder& responder_;
};

// Executes the commands of I/O queues: at once on a backing that is prompt, else by threads.
// Thread-compatible.
class IoCommandSet {
 public:
  // All arguments must outlive this object.
  IoCommandSet(Resources& resources, Transaction& transaction, PendingCommands& pending,
               Associations& associations, Responder& responder)
      : resources_(resources),
        transaction_(transaction),
        pending_(pending),
        associations_(associations),
        responder_(responder) {}

  // Starts `threads` threads if some backings are not prompt. They wake `worker`.
  // kInvalidArgument: the service's capacity does not allow the backings.
  absl::Status StartExecutor(Worker& worker, uint32_t threads);

  // `chunk`: where `data`, the host's, are; nullopt if they are in the capsule.
  void Perform(const Step& step, std::optional<uint32_t> chunk, absl::Span<uint8_t> data);
  // Answers the commands that threads have executed, as far as there is room.
  void TakeResults() {
    if (jobs_) CompleteJobs();
  }

  // The connection has ended: no command of it is answered any more.
  void OnEnd(uint32_t connection) {
    if (jobs_) jobs_->Orphan(connection, &resources_.chunks);
  }
  // Waits until the threads have executed all of their commands.
  void Drain() {
    if (jobs_) jobs_->Drain();
  }
  void Forget() {
    if (jobs_) jobs_->Forget();
  }

 private:
  void Submit(const Step& step, const IoWork& work, std::optional<uint32_t> chunk,
              absl::Span<uint8_t> data);
  void CompleteJobs();
  void Complete(const Job& job, StatusCode status);

  Resources& resources_;
  Transaction& transaction_;
  PendingCommands& pending_;
  Associations& associations_;
  Responder& responder_;
  std::optional<Jobs> jobs_;  // if some files are not prompt
};

}  // namespace baton::nvmed

#endif  // WORKER_EXAMPLES_NVMED_COMMAND_SETS_H_
