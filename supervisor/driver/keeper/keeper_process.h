// The keeper of a driver's service: starts it, notices its end and its silence. Starts a later
// program's keeper beside it when told to, and goes back to the program before when that one does
// not serve.
#ifndef SUPERVISOR_DRIVER_KEEPER_KEEPER_PROCESS_H_
#define SUPERVISOR_DRIVER_KEEPER_KEEPER_PROCESS_H_

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "lib/base/file_descriptor.h"
#include "lib/channel/message_channel.h"
#include "lib/waiting/back_off.h"
#include "supervisor/batond/program_file.h"
#include "supervisor/batond/spawn.h"

namespace baton::driver_process {

// Thread-compatible: the main thread, with which the keeper dies.
class KeeperProcess {
 public:
  using Clock = std::chrono::steady_clock;

  // `program`: path of baton-keeper. `network`: a descriptor that each keeper inherits; -1: none.
  KeeperProcess(std::string program, std::chrono::milliseconds hang_timeout, int network)
      : program_(std::move(program)), hang_timeout_(hang_timeout), network_(network) {}

  // Starts the keeper of the program that is to run. `input` is what it reads from standard input.
  // REQUIRES: !runs().
  absl::Status Start(const std::string& input);
  bool runs() const { return running_.has_value(); }
  pid_t pid() const { return running_ ? running_->process.pid : 0; }
  // REQUIRES: runs().
  MessageChannel& orders() { return running_->orders; }
  MessageChannel& news() { return running_->news; }

  // Starts the keeper of the program that is at the path now, beside the one that runs. Once it
  // gives its first order, LookAtNext asks the one that runs to end. kAborted: another replacement
  // is under way.
  absl::Status StartNext(const std::string& input);
  void LookAtNext();
  // After Reap: the keeper beside the one that has ended, if it has given an order, is the one that
  // runs from now on. Any other is given up: nobody knows whether it will.
  bool FollowWithNext();
  // Descriptors that become readable when there is something for LookAtNext, or for Reap.
  std::vector<int> process_descriptors() const;

  void Signal(int signal);
  // Kills a keeper that does not speak as a keeper does. It counts as one that has crashed.
  void KillFaulty();
  // Returns how it ended, in words ("was killed by signal 9 (Killed)"), if it has; it is reaped,
  // and runs() is false then. `exit_code`: of one that ended by itself; otherwise unchanged.
  std::optional<std::string> Reap(int* exit_code);

  // Returns why the program on trial has been given up, once. Its first keeper could not be run,
  // has ended or hung before it had shown life (kStartTimeout), or has crashed or hung before it
  // had shown life for kLongLife, which proves its program.
  std::optional<std::string> TakeGivenUp() { return std::exchange(given_up_, std::nullopt); }

  // Notes a sign of life, by which its silence is judged from now on.
  void NoteLife();
  // Notes that an order was executed: the keeper has waited for that.
  void NoteOrder() { last_sign_ = Clock::now(); }
  bool shows_life() const { return shows_life_; }  // or did, until it ended
  // Sets whether a keeper that falls silent is killed.
  void SetKillsHung(bool kills_hung) { kills_hung_ = kills_hung; }
  enum class Silence { kNone, kBegins, kEnds };
  // A keeper that does not come to show life, and gives no order for this time, is killed.
  static constexpr std::chrono::seconds kStartTimeout{30};
  // A keeper that lived for less did not get on.
  static constexpr std::chrono::seconds kLongLife{5};
  // A keeper that is to be followed and has not ended by then is killed.
  static constexpr std::chrono::seconds kEndTimeout{3};
  // Returns whether its silence has become a hang, or a hang is over, since the last call. Kills it
  // when a hang begins, if SetKillsHung said so, its program is on trial, or it has never shown
  // life. Call it now and then.
  Silence LookForHang();
  // Returns when a keeper that stays silent hangs. Empty: none runs that has shown life, or it
  // does.
  std::optional<Clock::time_point> hang_begins() const {
    if (!running_ || !shows_life_ || hung_) return std::nullopt;
    return last_sign_ + hang_timeout_;
  }
  bool kills_hung() const { return kills_hung_; }
  std::chrono::milliseconds hang_timeout() const { return hang_timeout_; }

  // Crashes in a row of keepers that did not live for long. One that is killed from outside, or
  // runs out of memory (SIGKILL), has not crashed, and ends the row.
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
  bool IsOnTrial() const { return program_.on_trial() && !next_; }
  void Prove();
  void GiveUp(const std::string& why);
  void GiveUpNext(const std::string& why);

  ReplaceableProgram program_;
  const std::chrono::milliseconds hang_timeout_;
  const int network_;
  std::optional<Running> running_, next_;
  std::optional<Clock::time_point> followed_at_;  // `next_` has given an order: running_ is to end
  std::optional<std::string> given_up_;
  Clock::time_point last_sign_;
  bool shows_life_ = false;
  bool kills_hung_ = false;
  bool hung_ = false;
  bool faulty_ = false;  // and killed for it, or because it hung
  uint32_t crashes_ = 0;
  // A start costs some milliseconds of a processor, and workers wait meanwhile to attach.
  BackOff back_off_{std::chrono::milliseconds(1), kMostPauseAfterCrashes};
};

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_KEEPER_KEEPER_PROCESS_H_
