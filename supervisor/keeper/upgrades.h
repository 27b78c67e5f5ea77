// Replaces a service's workers by those of another program, and undoes that by itself.
//
// The new program is started beside the old one. When all its workers are ready and healthy, the
// shards are handed to them, one after the other as in any planned handoff. From then on they are
// watched, with the old workers standing by, warm and named as heirs: if a new one dies, hangs (it
// is then killed), turns unhealthy or gives a shard back, every shard goes back, and the new
// workers are ended. A dead owner's shards do not wait for that: the engine gives them to the heir
// at once. After the watch window the old workers are ended. Everything is decided here: control
// may be dead.
//
//   STARTING -> HANDING_OVER -> WATCHING -> RETIRING -> COMPLETED
//        \            \             \-> RETURNING -> ROLLED_BACK, or
//         \------------\---------------> RETURNING -> FAILED, when no shard was handed over
//
// With canary shards these go first: HANDING_OVER -> CANARY -> HANDING_OVER -> WATCHING. Whoever
// pauses it keeps it from going on to the next phase, not from returning.
#ifndef SUPERVISOR_KEEPER_UPGRADES_H_
#define SUPERVISOR_KEEPER_UPGRADES_H_

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/baton/internal/keeper.pb.h"
#include "supervisor/keeper/event_log.h"
#include "supervisor/keeper/handoffs.h"
#include "supervisor/keeper/policies.h"
#include "supervisor/keeper/program.h"
#include "supervisor/keeper/service_engine.h"
#include "supervisor/keeper/started_worker.h"
#include "supervisor/keeper/worker_sessions.h"

namespace baton::keeper {

// Thread-compatible: the management loop's thread.
class Upgrades : private WorkerObserver {
 public:
  // Upgrades, and programs to return to, that are remembered.
  static constexpr size_t kHistory = 16;

  // All references outlive it. It observes `workers`.
  Upgrades(boost::asio::io_context& loop, const internal::KeeperConfig& config,
           ServiceEngine& engine, const Policies& policies, EventLog& events,
           WorkerSessions& workers, WorkerPrograms& programs);
  ~Upgrades() override;

  // Starts one: its new processes run when this returns. kInvalidArgument names the field;
  // kFailedPrecondition: another is under way, or no worker runs.
  absl::StatusOr<v1::Upgrade> Start(const v1::UpgradePlan& plan);

  // Undoes the one under way, or starts the program before the last one that completed.
  absl::StatusOr<v1::Upgrade> Rollback(const internal::Rollback& request);

  // Of the one under way. kFailedPrecondition: there is none, or it is past being held.
  absl::StatusOr<v1::Upgrade> Pause();
  absl::StatusOr<v1::Upgrade> Resume();

  // kFailedPrecondition: one is under way; says how far it is and what can be done.
  absl::Status CheckIdle() const;

  bool idle() const { return current_ == nullptr; }
  std::optional<v1::Upgrade> UnderWay() const;
  uint64_t last_id() const { return last_id_; }  // of those that were started; 0: none was
  std::vector<v1::Upgrade> List() const;         // the newest first; the one under way among them

 private:
  struct Current;

  // Starting.
  absl::StatusOr<v1::Upgrade> Begin(internal::Program old_program, internal::Program new_program,
                                    const v1::UpgradePlan& plan, bool rollback);
  absl::Status Launch(uint32_t count);
  void WatchChild(const std::shared_ptr<StartedWorker>& child);
  void OnChildEnded(const std::shared_ptr<StartedWorker>& child);
  void Advance();
  std::string WhyNotReady() const;
  absl::Status CheckPrograms();

  // Going on.
  absl::Status CheckHoldable() const;
  void HandOver();
  std::vector<uint32_t> NextShards() const;
  void NoteOwners();
  size_t NewOwners() const;
  void OnHandedOver(const HandoffsResult& result);
  void LookAtNewWorkers();
  bool PromoteNewWorkers();
  std::string ProblemOfNewWorkers();
  void OnWindowOver();
  uint64_t CompletionsDealtWith();
  std::string ShardThatWentBack();

  // Ending.
  void Return(const std::string& why);
  std::vector<ShardMove> MovesBack();
  void OnReturned(const HandoffsResult& result);
  void Retire();
  void End(const std::set<uint64_t>& worker_ids);
  void KillOverdue();
  void CheckEnded();
  v1::UpgradePhase Outcome() const;
  void Finish(v1::UpgradePhase phase, const std::string& detail);

  void EnterPhase(v1::UpgradePhase phase, std::chrono::milliseconds limit);
  void Tick();
  void RememberProgram();
  void AddEvent(const std::string& kind, const std::string& message);
  v1::Upgrade Describe() const;  // of the one under way

  Standing OnAttached(uint64_t worker_id, pid_t pid) override;
  void OnReady(uint64_t worker_id) override;
  void OnGone(uint64_t worker_id, const std::string& kill_cause) override;

  boost::asio::io_context& loop_;
  const internal::KeeperConfig& config_;
  ServiceEngine& engine_;
  const Policies& policies_;
  EventLog& events_;
  WorkerSessions& workers_;
  WorkerPrograms& programs_;
  boost::asio::steady_timer timer_;
  std::unique_ptr<Current> current_;
  std::deque<v1::Upgrade> history_;             // the newest first
  std::deque<internal::Program> predecessors_;  // of the program that serves; the last one first
  uint64_t last_id_ = 0;
};

}  // namespace baton::keeper

#endif  // SUPERVISOR_KEEPER_UPGRADES_H_
