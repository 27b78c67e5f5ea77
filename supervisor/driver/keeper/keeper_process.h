// The keeper of a driver's service: starts it, notices its end and its silence. Goes back to the
// program of the last keeper that served well when that of a later one does not.
#ifndef SUPERVISOR_DRIVER_KEEPER_KEEPER_PROCESS_H_
#define SUPERVISOR_DRIVER_KEEPER_KEEPER_PROCESS_H_

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "lib/base/file_descriptor.h"
#include "lib/channel/message_channel.h"
#include "lib/waiting/back_off.h"
#include "supervisor/batond/spawn.h"
#include "supervisor/driver/keeper/keeper_image.h"

namespace baton::driver_process {

// Thread-compatible: the main thread, with which the keeper dies.
class KeeperProcess {
 public:
  using Clock = std::chrono::steady_clock;

  // `program`: path of baton-keeper. `network`: a descriptor that each keeper inherits; -1: none.
  KeeperProcess(std::string program, std::chrono::milliseconds hang_timeout, int network)
      : program_(std::move(program)), hang_timeout_(hang_timeout), network_(network) {}

  // Starts the program that is at its path now, or the one before if that one was given up.
  // `input` is what it reads from standard input. REQUIRES: !runs().
  absl::Status Start(const std::string& input);
  bool runs() const { return process_.has_value(); }
  pid_t pid() const { return process_ ? process_->pid : 0; }
  int pidfd() const { return process_ ? process_->pidfd.get() : -1; }  // readable: it has ended
  // REQUIRES: runs().
  MessageChannel& orders() { return *orders_; }
  MessageChannel& news() { return *news_; }

  void Signal(int signal);
  // Returns how it ended, in words ("was killed by signal 9 (Killed)"), if it has; it is reaped,
  // and runs() is false then. `exit_code`: of one that ended by itself; otherwise unchanged.
  std::optional<std::string> Reap(int* exit_code);

  // Returns true, once, when the program at the path has been given up. Its first keeper has
  // crashed within kLongLife of its start, has ended or hung before it had shown life
  // (kStartTimeout), could not be run, or was killed within kLongLife because it hung. A keeper
  // that lived for kLongLife proves its program: the program that was proven last is started, until
  // there is yet another at the path.
  bool TakeGivenUp() { return std::exchange(given_up_now_, false); }
  bool has_given_up() const { return given_up_.has_value(); }

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
  // Returns whether its silence has become a hang, or a hang is over, since the last call. Kills it
  // when a hang begins, if SetKillsHung said so or it has never shown life. Call it now and then.
  Silence LookForHang();
  bool kills_hung() const { return kills_hung_; }
  std::chrono::milliseconds hang_timeout() const { return hang_timeout_; }

  // Crashes in a row of keepers that did not live for long. One that is killed from outside, or
  // runs out of memory (SIGKILL), has not crashed.
  uint32_t crashes() const { return crashes_; }
  // Returns the pause before the next start.
  std::chrono::milliseconds NextPause();

 private:
  bool HasUnread() const;
  void JudgeImage(bool failed);
  void GiveUp();
  absl::Status Run(const std::string& program, const std::string& input);

  const std::string program_;
  const std::chrono::milliseconds hang_timeout_;
  const int network_;
  std::optional<SpawnedProcess> process_;
  std::optional<MessageChannel> orders_, news_;
  std::optional<KeeperImage> image_;     // that runs, or ran last
  std::optional<KeeperImage> proven_;    // of the last keeper that lived for long
  std::optional<KeeperImage> given_up_;  // at the path, and not started
  bool given_up_now_ = false;
  Clock::time_point started_, last_sign_;
  bool shows_life_ = false;
  bool kills_hung_ = false;
  bool hung_ = false;
  bool killed_hung_ = false;
  uint32_t crashes_ = 0;
  // A start costs some milliseconds of a processor, and workers wait meanwhile to attach.
  BackOff back_off_{std::chrono::milliseconds(1), std::chrono::milliseconds(500)};
};

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_KEEPER_KEEPER_PROCESS_H_
