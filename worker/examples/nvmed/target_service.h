// nvmed's service: a host's queue is a connection, a command is a message. state.md argues why each
// command is executed and answered exactly once.
#ifndef WORKER_EXAMPLES_NVMED_TARGET_SERVICE_H_
#define WORKER_EXAMPLES_NVMED_TARGET_SERVICE_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "worker/examples/nvmed/buffer_plan.h"
#include "worker/examples/nvmed/capsule.h"
#include "worker/examples/nvmed/controller.h"
#include "worker/examples/nvmed/io_command.h"
#include "worker/examples/nvmed/jobs.h"
#include "worker/examples/nvmed/registry.h"
#include "worker/examples/nvmed/target.h"
#include "worker/worker.h"

namespace baton::nvmed {

// A fault that the service commits once, in builds with test hooks, so that tests can show that
// they find it.
struct Fault {
  std::string kind;
  uint64_t at = 0;  // occasion, from 1 on
};

// By when a sign of life has to come. After a stall of this process the sign may be there, unread.
// So the deadline is over only a second after IsOver first saw that it had passed.
class Deadline {
 public:
  Deadline() = default;
  explicit Deadline(uint64_t at) : at_(at) {}  // CLOCK_MONOTONIC, ns

  uint64_t at() const { return at_; }
  bool IsOver(uint64_t now) {
    if (at_ > now) return false;
    if (!std::exchange(seen_, true)) at_ = now + 1'000'000'000;
    return at_ <= now;
  }

 private:
  uint64_t at_ = 0;
  bool seen_ = false;
};

// Thread-safety: like Worker. REQUIRES: CommitMode::kManual.
class TargetService final : public Service {
 public:
  TargetService(TargetConfig config, std::string firmware)
      : config_(std::move(config)), firmware_(std::move(firmware)) {}

  void SetFault(const Fault& fault) { fault_ = fault; }
  // Sets the port that hosts are told to connect to, instead of the configured one. Call after Fit.
  void SetPort(uint16_t port) { options_.port = port; }

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
  void BeginTurn(uint64_t now) { now_ = now; }
  // Call it after each Worker::Poll. Goes on with commands that waited for room, disconnects hosts
  // that have shown no sign of life, and commits. `now`: like BeginTurn's.
  void EndTurn(uint64_t now);
  // Waits for the work that was begun, answers what can be answered, and commits. Call it before
  // the worker is destroyed.
  void Quiesce();
  // Returns when EndTurn has to be called at the latest; CLOCK_MONOTONIC, ns.
  uint64_t next_deadline() const { return next_deadline_; }
  bool stopping() const { return stopping_; }

 private:
  // A queue of a host's, which is a connection.
  struct Queue {
    Connection* connection = nullptr;
    uint32_t generation = 0;  // of its connection; another one may have the slot by now
    QueueState state;
    std::vector<PendingCommand> pending;  // by slot
    uint32_t pending_count = 0;
    std::optional<Deadline> connect_by;  // set while it is accepted and not connected
    std::optional<Deadline> sends_by;    // set while a send has not completed
    bool touched = false;                // differs from what is committed
  };
  // A command from its arrival to its answer.
  struct Step {
    Queue& queue;
    uint16_t slot = 0;
    uint32_t bytes = 0;  // of its capsule
    Capsule capsule;
    uint32_t length = 0;  // of its data
  };
  struct Waiting {
    uint32_t connection;
    uint32_t generation;
    uint16_t slot;
    uint32_t order;
  };

  struct ConnectionName {
    uint32_t connection;
    uint32_t generation;
  };

  absl::Status StartExecutor(Worker& worker);

  // Connections.
  void OnConnectRequest(Connection& connection);
  absl::Status Accept(Connection& connection, const RdmaRequest& request);
  void AnswerRequests();
  void OnEnd(Queue& queue);
  Queue& QueueOf(Connection& connection);
  absl::Status LoadQueue(Connection& connection);
  void MatchControllers();
  void Drop(Queue& queue, std::string_view why);
  void EndConnections();
  void DropController(ControllerState& controller, std::string_view why);
  absl::Status Send(Queue& queue, const SendWork& work);
  bool PostReceive(Queue& queue, uint16_t slot);

  // Commands, from their arrival to their answer.
  void OnReceive(Queue& queue, const Completion& completion);
  void OnSent(Queue& queue, const Completion& completion);
  void Begin(Queue& queue, uint16_t slot, uint32_t bytes);
  void Continue(Queue& queue, uint16_t slot, uint32_t bytes, std::optional<uint32_t> chunk);
  StatusCode CheckData(Step& step);
  void Fetch(const Step& step);
  void Perform(const Step& step, std::optional<uint32_t> chunk);
  void PerformFabrics(const Step& step, absl::Span<const uint8_t> data);
  void PerformConnect(const Step& step, absl::Span<const uint8_t> data);
  void PerformAdmin(const Step& step);
  void PerformIo(const Step& step, std::optional<uint32_t> chunk, absl::Span<uint8_t> data);
  void Submit(const Step& step, const IoWork& work, std::optional<uint32_t> chunk,
              absl::Span<uint8_t> data);
  void TakeResults();
  void Complete(const Job& job, StatusCode status);
  void Count(Queue& queue, const IoWork& work);
  void Finish(const Step& step, const Answer& answer, std::optional<Buffer> data = std::nullopt,
              std::optional<uint32_t> chunk = std::nullopt);
  void Respond(Queue& queue, uint16_t slot, const CompletionEntry& entry, const DataPointer& data,
               bool last);
  void Wait(Queue& queue, uint16_t slot, uint32_t bytes, std::optional<uint32_t> chunk);
  uint32_t SetPending(Queue& queue, uint16_t slot, uint32_t bytes, std::optional<uint32_t> chunk);
  void ClearPending(Queue& queue, uint16_t slot);
  void Resume();
  bool IsForThreads(Queue& queue, uint16_t slot, uint32_t bytes, IoWork* work,
                    DataPointer::Kind* data);
  bool StartsWithoutRoom(Queue& queue, uint16_t slot, uint32_t bytes, bool fetched);

  bool HasRoom(const Queue& queue) const;
  CapsuleLimits LimitsOf(const Queue& queue) const;
  absl::Span<uint8_t> BytesAt(uint64_t offset, uint64_t length) const;
  ControllerState* ControllerOf(const Queue& queue);
  Subsystem* SubsystemOf(const Queue& queue);
  Namespace* NamespaceOf(const Step& step);
  Controller View(ControllerState& state) {
    return Controller(state, options_, *target_, *registry_);
  }
  Totals TotalsOf(const ControllerState& controller) const;
  bool Touch(Queue& queue);
  bool MakeRoom(Queue& queue);
  void Hear(const Queue& queue);
  Deadline HostDeadline();
  void AwaitSends(Queue& queue);
  std::optional<std::string_view> CheckQueue(Queue& queue);
  void CheckDeadlines();
  void TellChanges();
  void Commit();
  void Forget();
#ifdef BATON_TEST_HOOKS
  bool IsTimeTo(std::string_view fault) {
    return fault == fault_.kind && ++occasions_ == fault_.at;
  }
  uint64_t occasions_ = 0;  // of the fault's kind
#else
  static constexpr bool IsTimeTo(std::string_view) { return false; }
#endif

  const TargetConfig config_;
  const std::string firmware_;
  Fault fault_;
  std::optional<BufferPlan> plan_;
  std::optional<Target> target_;
  std::optional<Registry> registry_;
  ControllerOptions options_;
  absl::Span<uint8_t> buffers_;

  // The state of the owned shard, including the open transaction.
  Shard* shard_ = nullptr;
  std::vector<std::unique_ptr<Queue>> queues_;  // by connection index
  std::vector<Queue*> touched_;
  ChunkPool chunks_;
  std::deque<Waiting> waiting_;
  std::vector<IoWork> passed_writes_;
  std::vector<Waiting> passed_over_;      // by Resume
  std::vector<ConnectionName> requests_;  // connect requests that found no room
  std::vector<ConnectionName> ends_;      // connections to disconnect
  uint32_t accepted_receives_ = 0;        // in the open transaction
  uint32_t staged_ = 0;                   // work requests, likewise
  uint32_t send_depth_ = 0;               // of a connection
  std::vector<Deadline> deadlines_;       // by place in the registry, which may have older ones
  std::vector<uint8_t> state_bytes_;
  std::optional<uint32_t> resumed_order_;  // of the command that Resume goes on with
  bool blocked_ = false;                   // that command has to wait again
  bool chunks_freed_ = false;              // a commit of this turn has freed some

  std::optional<Jobs> jobs_;  // if some files are not prompt
  uint32_t next_order_ = 0;
  uint64_t next_deadline_ = UINT64_MAX;
  uint64_t now_ = 0;
  bool stopping_ = false;
};

}  // namespace baton::nvmed

#endif  // WORKER_EXAMPLES_NVMED_TARGET_SERVICE_H_
