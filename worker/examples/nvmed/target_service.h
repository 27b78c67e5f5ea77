// nvmed's service: a host's queue is a connection, a command is a message. state.md argues why each
// command is executed and answered exactly once.
#ifndef WORKER_EXAMPLES_NVMED_TARGET_SERVICE_H_
#define WORKER_EXAMPLES_NVMED_TARGET_SERVICE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "worker/examples/nvmed/associations.h"
#include "worker/examples/nvmed/command_sets.h"
#include "worker/examples/nvmed/resources.h"
#include "worker/examples/nvmed/target_config.pb.h"
#include "worker/examples/nvmed/transaction.h"
#include "worker/worker.h"

namespace baton::nvmed {

// Takes commands from their arrival to their execution, with their data. Thread-compatible.
class CommandProcessor {
 public:
  // All arguments must outlive this object.
  CommandProcessor(Resources& resources, Transaction& transaction, PendingCommands& pending,
                   Associations& associations)
      : resources_(resources),
        transaction_(transaction),
        pending_(pending),
        associations_(associations),
        responder_(resources, transaction, associations),
        admin_(resources, pending, associations, responder_),
        io_(resources, transaction, pending, associations, responder_) {}

  Responder& responder() { return responder_; }
  IoCommandSet& io() { return io_; }

  void OnReceive(Queue& queue, const Completion& completion);
  void OnSent(Queue& queue, const Completion& completion);
  // Goes on with waiting commands, in the order of arrival. A command that cannot go on yet (its
  // queue has no room, there is no chunk, or it overlaps another) keeps its place. It delays only
  // later writes that overlap it, and these only if it has all of its data. Without its data no
  // former owner can have executed it, and it may be waiting for a chunk that a later write has.
  void Resume();

 private:
  void Begin(Queue& queue, uint16_t slot, uint32_t bytes);
  void Continue(Queue& queue, uint16_t slot, uint32_t bytes, std::optional<uint32_t> chunk);
  bool GoOn(const PendingCommands::Waiting& waiting);
  void Fetch(const Step& step);
  void Perform(const Step& step, std::optional<uint32_t> chunk);

  StatusCode CheckData(Step& step);
  bool IsForThreads(Queue& queue, uint16_t slot, uint32_t bytes, IoWork* work,
                    DataPointer::Kind* data);
  bool StartsWithoutRoom(Queue& queue, uint16_t slot, uint32_t bytes, bool fetched);

  Resources& resources_;
  Transaction& transaction_;
  PendingCommands& pending_;
  Associations& associations_;
  Responder responder_;
  AdminCommandSet admin_;
  IoCommandSet io_;
  std::vector<IoWork> passed_writes_;  // by Resume
};

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
