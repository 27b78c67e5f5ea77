// The program that batond runs, and how another one takes its place. The process executes the other
// program, keeps its number, and finds drivers like any next batond. Until the other program has
// served for a while, it is on probation, and the state directory keeps the former one. If it dies
// on probation, the next batond goes back to the former program.
#ifndef SUPERVISOR_BATOND_OWN_PROGRAM_H_
#define SUPERVISOR_BATOND_OWN_PROGRAM_H_

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "supervisor/batond/spawn.h"

namespace baton {

// Thread-compatible. One per process.
class OwnProgram {
 public:
  // `argc`, `argv`: of main. Takes the variables that a former program has left in the environment.
  OwnProgram(int argc, char** argv);

  // Returns the path from which the program was started. Another file may be there now.
  const std::string& path() const { return path_; }
  std::string directory() const { return path_.substr(0, path_.rfind('/')); }
  const std::vector<std::string>& arguments() const { return arguments_; }  // with argv[0]

  // Adds a variable to the environment in which Replace and GoBack execute the other program. The
  // rest of it is what this program was started with, such as the service manager's variables.
  void LeaveVariable(const std::string& name, const std::string& value);

  // Keeps a copy of the running program to go back to until the other one has served for
  // `probation`. Call it before Replace. After an error the other program must not be executed.
  absl::Status Keep(const std::string& state_dir, std::chrono::milliseconds probation);
  // Executes the program that is at the path now, or this one again if it cannot be run. Returns
  // only with an error.
  absl::Status Replace();

  bool on_probation() const { return on_probation_; }
  // Returns how long this program has to serve before its probation ends.
  std::chrono::milliseconds probation() const { return probation_; }
  // Goes back to the former program if the process of a probation has died. Returns otherwise.
  void GoBackIfProbationFailed(const std::string& state_dir);
  // Goes back to the former program, because this one, on probation, cannot serve. Returns only if
  // the former program cannot be run.
  void GoBack(const std::string& why);
  // Makes this program stay, because it serves, or was told to stop.
  void EndProbation();

  // Returns why the program that was to replace this one was given up; empty: none was given up.
  const std::string& given_up() const { return given_up_; }
  // Returns how the batond before this process ended, if baton-init has said so.
  const std::string& former_end() const { return former_end_; }

 private:
  std::string path_, given_up_, former_end_;
  std::vector<std::string> arguments_, environment_;
  bool on_probation_ = false;
  std::chrono::milliseconds probation_ = ReplaceableProgram::kLeastProbation;
  std::string kept_;  // path of the former program; empty: none is kept
};

// Lets another program of batond check this one's command line and configuration. One check at a
// time. Single-threaded, on `io`'s thread.
class ProgramCheck {
 public:
  static constexpr std::chrono::seconds kTimeout{5};  // less than control waits
  using Done = std::function<void(const absl::Status&)>;

  explicit ProgramCheck(boost::asio::io_context& io) : end_(io), timer_(io) {}
  ~ProgramCheck() { Forget(); }

  // Runs the program that is at `own`'s path now with `own`'s arguments and --check. Calls `done`
  // once, at once or later. kAborted: another check is under way.
  void Run(const OwnProgram& own, Done done);

 private:
  void OnEnd();
  void Forget();

  std::string program_;
  Done done_;
  SpawnedProcess process_;
  boost::asio::posix::stream_descriptor end_;  // process_.pidfd, borrowed
  boost::asio::steady_timer timer_;
};

}  // namespace baton

#endif  // SUPERVISOR_BATOND_OWN_PROGRAM_H_
