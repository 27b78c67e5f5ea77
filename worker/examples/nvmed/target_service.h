// nvmed's service: a host's queue is a connection, a command is a message. state.md argues why each
// command is executed and answered exactly once.
#ifndef WORKER_EXAMPLES_NVMED_TARGET_SERVICE_H_
#define WORKER_EXAMPLES_NVMED_TARGET_SERVICE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "worker/examples/nvmed/associations.h"
#include "worker/examples/nvmed/command_processor.h"
#include "worker/examples/nvmed/resources.h"
#include "worker/examples/nvmed/target_config.pb.h"
#include "worker/examples/nvmed/transaction.h"
#include "worker/worker.h"

namespace baton::nvmed {

// Thread-safety: like Worker. REQUIRES: CommitMode::kManual.
class TargetService final : public Service {
 public:
  TargetService(TargetConfig config, std::string firmware)
      : config_(std::move(config)), firmware_(std::move(firmware)) {}

  // Call it before Fit.
  void SetFault(const Fault& fault) { fault_ = fault; }
  // Sets the port that hosts are told to connect to, instead of the configured one. Call after Fit.
  void SetPort(uint16_t port) { parts_->resources.options.port = port; }

  // Call it between Worker::Attach and Worker::Ready. An error names what in the configuration or
  // in the service's capacity does not suffice, and what would.
  absl::Status Fit(Worker& worker);

  absl::Status OnAdopt(Shard& shard) override;
  void OnCompletion(Shard& shard, const Completion& completion) override;
  void OnRelease(Shard& shard) override;
  void OnLost(Shard& shard) override;
  void OnShutdown(std::string_view reason) override;

  // Call it before each Worker::Poll. Signs of life that the Poll brings count as of `now`. `now`:
  // CLOCK_MONOTONIC, ns.
  void BeginTurn(uint64_t now) { parts_->resources.deadlines.set_now(now); }
  // Call it after each Worker::Poll. Goes on with commands that waited for room, disconnects hosts
  // that have shown no sign of life, and commits. `now`: like BeginTurn's.
  void EndTurn(uint64_t now);
  // Waits for the work that was begun, answers what can be answered, and commits. Call it before
  // the worker is destroyed.
  void Quiesce();
  // Returns when EndTurn has to be called at the latest; CLOCK_MONOTONIC, ns.
  uint64_t next_deadline() const { return parts_->resources.deadlines.next(); }
  bool stopping() const { return stopping_; }

 private:
  // Each refers to those before it, so they stay where they are.
  struct Parts {
    Parts(Resources fitted, const Capacity& capacity)
        : resources(std::move(fitted)),
          transaction(resources),
          pending(transaction),
          associations(resources, transaction, pending, capacity),
          commands(resources, transaction, pending, associations) {}

    Resources resources;
    Transaction transaction;
    PendingCommands pending;
    Associations associations;
    CommandProcessor commands;
  };

  void OnEnd(Queue& queue);
  void Forget();

  const TargetConfig config_;
  const std::string firmware_;
  Fault fault_;
  std::optional<Parts> parts_;  // once Fit has returned OK
  bool stopping_ = false;
};

}  // namespace baton::nvmed

#endif  // WORKER_EXAMPLES_NVMED_TARGET_SERVICE_H_
