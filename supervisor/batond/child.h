#ifndef SUPERVISOR_BATOND_CHILD_H_
#define SUPERVISOR_BATOND_CHILD_H_

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"
#include "lib/base/pauses.h"
#include "spdlog/common.h"
#include "supervisor/batond/child_lock.h"
#include "supervisor/batond/spawn.h"

namespace baton {

// One process that batond keeps running: a service's driver, or control. Starts it, notices that it
// is ready or gone, and knows how long to wait before the next start. The supervisor decides when
// to start it again. Single-threaded, on `io`'s thread.
class Child {
 public:
  using GivenDescriptors = std::vector<std::pair<std::string, FileDescriptor>>;
  struct Plan {
    std::string name;     // in the log and in errors: "driver of service ledger"
    std::string service;  // whose driver it is; empty: not a driver
    std::string program;
    HelperPrograms helpers;  // of the program (ProgramFile::Open)
    // A child that outlived a former batond may run this program: its release was another.
    std::string former_program;
    std::string input;
    std::string log;   // its standard error, in the form of ServiceConfig.log; empty: batond's
    std::string lock;  // path of its lock (ChildLock), which it inherits
    // The child goes on when batond dies. A former release's control does not, so control has to
    // say that it does (Readiness). Until then it dies with batond.
    enum class Outlives { kAlways, kOnceItSaysSo };
    Outlives outlives_us = Outlives::kAlways;
    // The pipe of kStayVariable, which the child inherits; -1: there is none.
    int stay = -1;
    // If not null, the child gets a socket to talk to batond (BATON_CONTROL_FD). `talk` gets
    // batond's end at every start.
    std::function<void(FileDescriptor)> talk;
    std::chrono::milliseconds start_timeout{};
    // Once ready, the child gives signs of life (lib/base/heartbeat.h). Without one for so long it
    // counts as hung.
    std::chrono::milliseconds hang_timeout{};
    bool kill_hung = false;           // unless its signs of life say otherwise
    std::optional<ProgramUser> user;  // the user that it runs as [batond's]
    // If not null, makes the descriptors that the child inherits, with names of variables, at every
    // start.
    std::function<absl::StatusOr<GivenDescriptors>()> give;
  };
  struct Callbacks {
    std::function<void()> ready;
    // The process is gone and reaped. `how` reads "was killed by signal 9 (Killed)", and ends with
    // "while starting" if it was not ready.
    std::function<void(const std::string& how)> gone;
    // hung() has changed.
    std::function<void()> hung;
    // The program that was to replace the child's was given up, because of `why`. Null: the program
    // is never replaced.
    std::function<void(const std::string& why)> program_given_up = nullptr;
    // Takes an event, which is in the log already: a hang of the child or of its keeper, a child
    // that follows another, a program that was given up.
    std::function<void(std::string kind, std::string message)> event = nullptr;
  };

  Child(boost::asio::io_context& io, Plan plan, Callbacks callbacks);
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  const std::string& name() const { return plan_.name; }
  const std::string& service() const { return plan_.service; }
  bool alive() const { return process_.pid > 0; }
  bool ready() const { return ready_; }
  // Returns true once the child has been ready, or its start has failed, at least once.
  bool settled() const { return settled_; }
  bool hung() const { return silent_looks_ >= kLooks; }
  // Returns true if the child has outlived a former batond and Rejoin has not taken it in yet.
  bool is_awaited() const { return awaited_ && alive(); }
  // Returns true if this batond started the process that runs, or ran last.
  bool started_here() const { return started_here_; }
  // Returns true if the child lives and goes on when batond ends.
  bool goes_on() const { return alive() && outlives_us_; }

  // Sets the input for the next start, or the whole plan. REQUIRES: `plan` has the same name and
  // lock.
  void SetInput(std::string input) { plan_.input = std::move(input); }
  void SetPlan(Plan plan) { plan_ = std::move(plan); }

  // Logs a line that begins with the child's name.
  void Log(spdlog::level::level_enum level, const std::string& what) const;

  // Starts the child, or goes on with one that outlived a former batond, which Rejoin then has to
  // take in. Does nothing if the child lives. Cancels a start that is due. kUnavailable: a process
  // that is dead or dying, or is not found, still has the lock.
  absl::Status Start();
  // Goes on with a child that outlived a former batond, if there is one. Without an error either
  // the child lives afterwards, or this object has its lock. Errors: as Start. REQUIRES: !alive().
  absl::Status FindFormer();
  // Takes in the child of a former batond, or one that has lost its channel. Calls Plan::talk.
  // Returns the descriptors of internal::RejoinReply.
  // kPermissionDenied: `process` does not have the child's lock. kFailedPrecondition: another
  // process is the child.
  absl::StatusOr<std::vector<FileDescriptor>> Rejoin(SpawnedProcess process, FileDescriptor lock);
  // Starts the child after its back-off, and again if that fails.
  void StartLater();
  // Cancels a start that is due.
  void CancelStart();
  // Sends a signal, if the child is alive. Cannot hit another process.
  void Signal(int signal);
  // Kills the child, and who would go on in its place (supervisor/driver/host_twin.h).
  void KillUnfollowed();

  // From its next start on the child runs the program that is at its path now. If a process of that
  // program is not ready in time, or ends or hangs during the probation, the next one runs the
  // former program. Without ReplaceProgram the child runs the file that was there when batond
  // began, whatever a package has put in its place. `probation`: see ReplaceableProgram::Replace.
  // A child of a former batond may run another: its own is the former one then.
  absl::Status ReplaceProgram(std::chrono::milliseconds probation);

 private:
  absl::Status SpawnWith(int ready_write_end);
  void GoOnWith(SpawnedProcess process);
  absl::StatusOr<FileDescriptor> MakeHeart();
  void OnReady();
  FileDescriptor OpenLog() const;
  // Two, because a machine that was suspended has given no signs: the second look comes after it
  // has resumed.
  static constexpr int kLooks = 2;  // in a hang_timeout

  void WatchReadiness();
  void WatchHeart();
  void LookAtHeart();
  void NoteSigns(std::string_view signs);
  void ReportHang();
  void ReportFollowed();
  // Logs an event and hands it on. `what` follows the child's name.
  void Report(spdlog::level::level_enum level, std::string kind, const std::string& what);
  bool is_control() const { return plan_.service.empty(); }
  void WatchEnd();
  void Reap();
  // Ends the probation of a program whose process has served for as long as it lasts. Returns
  // whether it did.
  bool ProveIfDue();
  // Returns what the child runs, if a former batond has started it.
  std::optional<ProgramFile> ProgramOfFormer() const;
  void GiveUpProgram(const std::string& why);

  Plan plan_;
  const Callbacks callbacks_;

  ReplaceableProgram program_;
  bool on_probation_ = false;  // the process that runs, or ran last, runs the program on probation
  bool told_to_end_ = false;   // that process was sent SIGTERM
  bool awaited_ = false;
  bool started_here_ = false;
  bool outlives_us_ = false;  // the process that runs does
  ChildLock lock_;
  SpawnedProcess process_;
  bool ready_ = false;
  bool settled_ = false;
  bool start_due_ = false;  // timer_ is the back-off
  std::chrono::steady_clock::time_point started_;
  std::optional<std::string> former_end_;  // how the last that served ended, until one follows
  std::chrono::steady_clock::time_point ended_at_;  // when it ended
  BackOff back_off_{std::chrono::milliseconds(10), std::chrono::seconds(5)};

  boost::asio::posix::stream_descriptor end_;        // process_.pidfd, borrowed
  boost::asio::posix::stream_descriptor readiness_;  // read end of the ready pipe
  char ready_byte_ = 0;
  boost::asio::steady_timer timer_;  // the start's time limit, or the back-off
  FileDescriptor heart_;             // read end of the pipe of its signs of life
  int silent_looks_ = 0;             // in a row
  bool kill_hung_ = false;           // what the process last asked for
  bool keeper_hangs_ = false;        // what the driver last said
  boost::asio::steady_timer heart_timer_;
  boost::asio::steady_timer reap_timer_;
};

// Opens what ServiceConfig.log names, for writing: "journal", or the path of a regular file, to
// which it appends, and which it makes if it is missing. Waits for it as OpenWithin does.
absl::StatusOr<FileDescriptor> OpenServiceLog(const std::string& log, const std::string& service);

// Reaps unmappers of native workers (lib/native/mappings.h) that have ended, and what dead drivers
// have left. The init process inherits children of dead parents, and batond is that process
// in a pid namespace of its own. Leaves other children to the code that waits for them. Never
// waits.
void ReapOrphans();

}  // namespace baton

#endif  // SUPERVISOR_BATOND_CHILD_H_
