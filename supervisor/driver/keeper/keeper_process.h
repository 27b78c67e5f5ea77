// Starts the keeper of a driver's service, and notices when it ends or falls silent. When told to,
// starts the keeper of a newer program beside it, and goes back to the former program if the new
// one does not serve.
#ifndef SUPERVISOR_DRIVER_KEEPER_KEEPER_PROCESS_H_
#define SUPERVISOR_DRIVER_KEEPER_KEEPER_PROCESS_H_

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "lib/base/pauses.h"
#include "lib/base/program_start.h"
#include "lib/channel/message_channel.h"
#include "supervisor/batond/spawn.h"

namespace baton::driver_process {

// Thread-compatible: the main thread. The keeper dies with that thread.
class KeeperProcess {
 public:
  using Clock = std::chrono::steady_clock;

  // `program`: path of baton-keeper. `network`: a descriptor that each keeper inherits; -1: none.
  KeeperProcess(std::string program, std::chrono::milliseconds hang_timeout, int network)
      : program_(std::move(program), kKeeperHelpers),
        hang_timeout_(hang_timeout),
        network_(network) {}

  // Starts the keeper of the program that is to run. `input` is what it reads from standard input.
  // REQUIRES: !runs().
  absl::Status Start(const std::string& input);
  bool runs() const { return running_.has_value(); }
  pid_t pid() const { return running_ ? running_->process.pid : 0; }
  // REQUIRES: runs().
  MessageChannel& orders() { return running_->orders; }
  MessageChannel& news() { return running_->news; }

  // Starts the keeper of the program that is at the path now, beside the one that runs. Once it
  // gives its first order, LookAtNext asks the one that runs to end. `probation`: see
  // ReplaceableProgram::Replace. kAborted: another replacement is under way.
  absl::Status StartNext(const std::string& input, std::chrono::milliseconds probation = {});
  void LookAtNext();
  // Call it after Reap(). Returns true if a keeper was started beside the ended one and has given
  // an order: that keeper runs from now on. Kills and gives up a keeper that has given none,
  // because it may never give one.
  bool FollowWithNext();
  // Descriptors that become readable when there is something for LookAtNext, or for Reap.
  std::vector<int> process_descriptors() const;

  // Called in a process that follows the dead one from which it was forked, and with which the
  // kernel kills the keepers. They run no more, and no other is to be started before they are gone.
  void ForgetFormer();
  bool former_are_gone();

  void Signal(int signal);
  // Kills a keeper that violates the protocol. It counts as crashed.
  void KillFaulty();
  // If the keeper has ended, reaps it and returns how, in words ("was killed by signal 9
  // (Killed)"). Then runs() is false. Sets `exit_code` only if the keeper exited by itself.
  std::optional<std::string> Reap(int* exit_code);

  // Returns why the program on probation was given up, once. Possible reasons: its first keeper
  // could not be run, ended or hung before it showed life (kStartTimeout), or crashed or hung
  // before it had shown life for as long as the probation lasts, which proves its program.
  std::optional<std::string> TakeGivenUp() { return std::exchange(given_up_, std::nullopt); }

  // Notes a sign of life. The keeper's silence counts from now on.
  void NoteLife();
  // Notes that an order was executed. The keeper waited for it, so that time is no silence.
  void NoteOrder() { last_sign_ = Clock::now(); }
  bool shows_life() const { return shows_life_; }  // or did, until it ended
  // Sets whether a keeper that falls silent is killed.
  void SetKillsHung(bool kills_hung) { kills_hung_ = kills_hung; }
  enum class Silence { kNone, kBegins, kEnds };
  // A keeper that has not shown life yet, and gives no order for this long, is killed.
  static constexpr std::chrono::seconds kStartTimeout{30};
  // A keeper that lives this long resets crashes() and the pause.
  static constexpr std::chrono::seconds kLongLife{5};
  // A keeper that has not ended this long after its successor's first order is killed.
  static constexpr std::chrono::seconds kEndTimeout{3};
  // Returns whether a hang has begun or ended since the last call. Kills the keeper when a hang
  // begins, if SetKillsHung() said so or its program is on probation. Also kills a keeper that has
  // shown no life within kStartTimeout. Call it regularly.
  Silence LookForHang();
  // Returns when the keeper counts as hung if it stays silent. Empty: no keeper that has shown life
  // runs, or it hangs already.
  std::optional<Clock::time_point> hang_begins() const {
    if (!running_ || !shows_life_ || hung_) return std::nullopt;
    return last_sign_ + hang_timeout_;
  }
  bool kills_hung() const { return kills_hung_; }
  std::chrono::milliseconds hang_timeout() const { return hang_timeout_; }

  // Returns how many keepers in a row crashed before kLongLife. A keeper that was killed from
  // outside, or by the kernel when memory ran out (SIGKILL), has not crashed, and ends the row.
  uint32_t crashes() const { return crashes_; }
  // Returns the pause before the next start: kMostPause at most, unless several have crashed in a
  // row.
  std::chrono::milliseconds NextPause();
  static constexpr std::chrono::milliseconds kMostPause{100}, kMostPauseAfterCrashes{500};

 private:
  struct Running {
    SpawnedProcess process;
    MessageChannel orders, news;
    Clock::time_point started;
  };

  absl::StatusOr<Running> Run(const std::string& input);
  bool HasUnread() const;
  bool IsOnProbation() const { return program_.on_probation() && !next_; }
  void Prove();
  void GiveUp(const std::string& why);
  void GiveUpNext(const std::string& why);

  ReplaceableProgram program_;
  const std::chrono::milliseconds hang_timeout_;
  const int network_;
  std::optional<Running> running_, next_;
  std::vector<FileDescriptor> former_;            // pidfds of keepers that are dying
  std::optional<Clock::time_point> followed_at_;  // `next_` has given an order: running_ is to end
  std::optional<std::string> given_up_;
  Clock::time_point last_sign_;
  bool shows_life_ = false;
  bool kills_hung_ = false;
  bool hung_ = false;
  bool faulty_ = false;  // it was killed because it was faulty, or hung
  uint32_t crashes_ = 0;
  // A start costs some milliseconds of a processor, and workers wait meanwhile to attach.
  BackOff back_off_{std::chrono::milliseconds(1), kMostPauseAfterCrashes};
};

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_KEEPER_KEEPER_PROCESS_H_
