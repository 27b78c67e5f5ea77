// Keeps as many workers of a brokered service ready without shards as its policy's hot_standbys
// says: starts those that are missing, one at a time, with the program of a worker that owns
// shards, or owned some last. Native services have native.workers for that.
//
// An upgrade replaces all ready workers, standbys too. Meanwhile this class starts none, and ends
// those that are not ready yet. When hot_standbys is lowered, it asks surplus standbys to end, if
// it has started them, or if they took the place of such in an upgrade. This class never ends a
// worker that owns a shard or is about to own one. A worker that was asked to end gets no shard.
// If a keeper dies, the next one goes on with its standbys.
#ifndef SUPERVISOR_KEEPER_UPGRADES_STANDBYS_H_
#define SUPERVISOR_KEEPER_UPGRADES_STANDBYS_H_

#include <sys/types.h>

#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/baton/internal/keeper.pb.h"
#include "supervisor/keeper/driver_client.h"
#include "supervisor/keeper/keeper_parts.h"
#include "supervisor/keeper/programs/program.h"
#include "supervisor/keeper/programs/watched_process.h"
#include "supervisor/keeper/sessions/shard_owners.h"
#include "supervisor/keeper/sessions/worker_sessions.h"
#include "supervisor/keeper/upgrades/upgrades.h"

namespace baton::keeper {

// Thread-compatible: the management loop's thread.
class Standbys {
 public:
  // Listens to context.policies. `upgrades` outlives it.
  Standbys(const KeeperParts& context, const Upgrades& upgrades);
  ~Standbys();

  // Goes on with the standbys of the former keeper.
  void Restore(const DriverClient::HeldByKey& held);

 private:
  using Clock = std::chrono::steady_clock;

  void GoOnFrom(const std::string& value);  // what is held of standbys

  // A process, with all the workers that it has.
  struct Standby {
    pid_t pid = 0;
    // Null: an upgrade has started and reaps it, or a former keeper has started it.
    std::shared_ptr<WatchedProcess> process;
    bool attached = false;  // when last looked at, like the next two
    bool ready = false;
    bool serves = false;     // owns shards
    bool was_ready = false;  // at some time
    bool has_served = false;
    bool replaced = false;  // by the upgrade that is under way, which ends it
    bool unwanted = false;  // it is to end, and could not be asked to yet
    bool ending = false;    // it was asked to
    bool killed = false;
    bool not_entered = false;  // its program could not be run
    uint64_t started_ns = 0;
    Clock::time_point deadline;  // to be ready, or to have ended
  };

  void OnPolicy();
  void AddReady(pid_t pid);
  // Adds a process that is to become ready, and watches its end.
  Standby& AddStarted(StartedProgram started);
  void Hold();
  void Look();
  void LookLater();
  void Follow(const std::vector<WorkerInfo>& workers, const WorkerRoles& roles);
  void LeaveToUpgrade();
  void TakeOverFromUpgrade(const WorkerRoles& roles);

  void RememberProgram(const WorkerRoles& roles);
  void ForgetProgram();
  void StartMissing(const WorkerRoles& roles);
  void OnProgram(uint64_t owner, absl::StatusOr<internal::Program> program);
  absl::Status Start(const internal::Program& program, size_t ready);
  void OnEntered(WatchedProcess& process, const std::string& what, const absl::Status& status);
  void OnEnded(const std::shared_ptr<WatchedProcess>& process);
  // Delays the next start.
  void NoteFailure(uint64_t lived_ns);
  void TellWhyNone(const absl::Status& why);

  void EndSurplus(const WorkerRoles& roles);
  // Asks it to end, at once or at a later look. Does nothing if it serves.
  void End(Standby& standby);
  void CheckDeadlines();
  void GiveUp(Standby& standby);
  // Counts the standbys that are not ready yet and may become so.
  size_t CountUnready() const;

  const KeeperParts context_;
  const Upgrades& upgrades_;
  boost::asio::steady_timer timer_;
  RestartDelay delay_;
  Clock::time_point not_before_;   // time of the next start or reading of a program
  std::vector<Standby> standbys_;  // also those that own shards by now
  uint32_t wanted_ = 0;            // as the policy last said
  bool lowered_ = false;           // since surplus standbys were last ended
  // The program of the last owner that was seen.
  std::optional<internal::Program> program_;
  uint64_t program_of_ = 0;        // the worker; 0: none
  bool reading_program_ = false;   // of an owner; no standby is started until then
  uint64_t program_epoch_ = 0;     // counts the times it was forgotten
  uint64_t unreadable_owner_ = 0;  // whose program could not be read at the last look
  std::string told_;               // why none can be started
  std::string held_;               // the value that is held for the next keeper
  uint64_t last_upgrade_ = 0;      // the last whose end was noticed
  uint64_t upgrade_met_ = 0;       // the last that was seen under way
  size_t replaced_ = 0;            // standbys that ended in an upgrade after last_upgrade_
};

}  // namespace baton::keeper

#endif  // SUPERVISOR_KEEPER_UPGRADES_STANDBYS_H_
