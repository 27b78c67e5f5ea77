#ifndef SUPERVISOR_BATOND_CHILD_H_
#define SUPERVISOR_BATOND_CHILD_H_

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"
#include "lib/waiting/back_off.h"
#include "spdlog/common.h"
#include "supervisor/batond/child_lock.h"
#include "supervisor/batond/program_file.h"
#include "supervisor/batond/spawn.h"

namespace baton {

// One process that batond keeps running: a service's driver, or control. Knows how to start it, to
// notice that it is ready or gone, and how long to wait before it is started again; when to do so
// is the supervisor's. Single-threaded, on `io`'s thread. No timer runs while it does.
class Child {
 public:
  using GivenDescriptors = std::vector<std::pair<std::string, FileDescriptor>>;
  struct Plan {
    std::string name;     // in the log and in errors: "driver of service ledger"
    std::string service;  // whose driver it is; empty: nobody's
    std::string program;
    // A child that outlived us may run this one: the mode of its service was another, or its
    // release.
    std::string former_program;
    std::string input;
    std::string log;   // what its standard error is, as ServiceConfig.log says; empty: ours
    std::string lock;  // path of its lock (ChildLock), which it inherits
    // The child goes on when batond dies, and Start finds one that went on.
    bool outlives_us = false;
    // The pipe of kStayVariable, which the child inherits; -1: there is none.
    int stay = -1;
    // Not null: it gets a socket to talk to us (BATON_CONTROL_FD); this one gets our end, at every
    // start.
    std::function<void(FileDescriptor)> talk;
    std::chrono::milliseconds start_timeout{};
    // Once ready, it shows that it lives (lib/base/heartbeat.h). One that has not for so long
    // hangs.
    std::chrono::milliseconds hang_timeout{};
    bool kill_hung = false;           // unless its signs of life say otherwise
    std::optional<ProgramUser> user;  // who it runs as [batond's]
    // Not null: makes descriptors that it is given, by the names of variables, at every start.
    std::function<absl::StatusOr<GivenDescriptors>()> give;
  };
  struct Callbacks {
    std::function<void()> ready;
    // The process is gone and reaped. `how` reads "was killed by signal 9 (Killed)", and "... while
    // starting" of one that was not ready.
    std::function<void(const std::string& how)> gone;
    // hung() is another than it was.
    std::function<void()> hung;
    // Why the program that was to replace it was given up. Null: it is never replaced.
    std::function<void(const std::string& why)> program_given_up = nullptr;
  };

  Child(boost::asio::io_context& io, Plan plan, Callbacks callbacks);
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  const std::string& name() const { return plan_.name; }
  const std::string& service() const { return plan_.service; }
  bool alive() const { return process_.pid > 0; }
  bool ready() const { return ready_; }
  // It has been ready, or its start has failed, at least once.
  bool settled() const { return settled_; }
  bool hung() const { return silent_looks_ >= kLooks; }
  // It has outlived a former batond, and Rejoin is still to take it in.
  bool is_awaited() const { return awaited_ && alive(); }

  // Sets the input for its next start, or everything. REQUIRES: `plan` has the same name and lock.
  void SetInput(std::string input) { plan_.input = std::move(input); }
  void SetPlan(Plan plan) { plan_ = std::move(plan); }

  // Logs a line that begins with its name.
  void Log(spdlog::level::level_enum level, const std::string& what) const;

  // Starts it, or goes on with the one that outlived a former batond, which Rejoin has still to
  // take in. kUnavailable: one that is dead or dying still has the lock.
  absl::Status Start();
  // Takes in the child of a former batond. Returns the descriptors of
  // internal::RejoinReply. kPermissionDenied: it does not have the child's lock.
  // kFailedPrecondition: another process is the child.
  absl::StatusOr<std::vector<FileDescriptor>> Rejoin(SpawnedProcess process, FileDescriptor lock);
  // Starts it after its back-off, and again should that fail.
  void StartLater();
  // No start that is still due takes place.
  void CancelStart();
  // Does nothing when it is not alive. Cannot hit another process.
  void Signal(int signal);

  // From its next start on it runs the program that is at its path now. If a process of that
  // program is not ready in time, or ends or hangs within kTrial, the next one runs the program
  // before. Without this, it runs the file that was there at its first start, whatever a package
  // has put in its place.
  absl::Status ReplaceProgram();
  static constexpr std::chrono::seconds kTrial{5};

 private:
  absl::Status SpawnWith(int ready_write_end);
  void GoOnWith(SpawnedProcess process);
  absl::StatusOr<FileDescriptor> MakeHeart();
  void OnReady();
  FileDescriptor OpenLog() const;
  // A machine that stood still has shown nothing either: the last look is after it has gone on.
  static constexpr int kLooks = 2;  // in a hang_timeout

  void WatchReadiness();
  void WatchHeart();
  void LookAtHeart();
  void NoteSigns(std::string_view signs);
  void WatchEnd();
  void Reap();
  // Ends the trial of a program whose process has served for kTrial. Returns whether it did.
  bool ProveIfDue();
  void GiveUpProgram(const std::string& why);

  Plan plan_;
  const Callbacks callbacks_;

  ReplaceableProgram program_;
  bool on_trial_ = false;     // the process that runs, or ran last, has the program on trial
  bool told_to_end_ = false;  // likewise, by SIGTERM
  bool awaited_ = false;
  ChildLock lock_;
  SpawnedProcess process_;
  bool ready_ = false;
  bool settled_ = false;
  bool start_due_ = false;  // the timer is the back-off
  std::chrono::steady_clock::time_point started_;
  BackOff back_off_{std::chrono::milliseconds(10), std::chrono::seconds(5)};

  boost::asio::posix::stream_descriptor end_;        // process_.pidfd, borrowed
  boost::asio::posix::stream_descriptor readiness_;  // read end of the ready pipe
  char ready_byte_ = 0;
  boost::asio::steady_timer timer_;  // the start's time limit, or the back-off
  FileDescriptor heart_;             // read end of the pipe of its signs of life
  int silent_looks_ = 0;             // in a row
  bool kill_hung_ = false;           // as the process that runs last said
  boost::asio::steady_timer heart_timer_;
  boost::asio::steady_timer reap_timer_;
};

// Reaps unmappers of native workers (lib/native/unmapper.h) and NICs of dead drivers (baton-nic)
// that have ended. A process whose parent is dead is the init process's child, which batond is in a
// pid namespace of its own. Other children are left to those who wait for them. Never waits.
void ReapOrphans();

}  // namespace baton

#endif  // SUPERVISOR_BATOND_CHILD_H_
