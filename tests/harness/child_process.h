// Child processes of a test, and what the kernel says about any process.
#ifndef TESTS_HARNESS_CHILD_PROCESS_H_
#define TESTS_HARNESS_CHILD_PROCESS_H_

#include <signal.h>
#include <sys/types.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"

namespace baton::harness {

// Children of all threads of the process.
std::vector<pid_t> ChildrenOf(pid_t process);

// A field of /proc/PID/status, for example "State"; "" if there is no such process.
std::string StatusOf(pid_t process, const std::string& field);

// Returns true for a zombie, too: it has no memory and no ports any more.
bool IsGone(pid_t process);

// The number of descriptors that the process has open; 0 if it is gone.
size_t DescriptorsOf(pid_t process);

// The process that is the NIC of this keeper's service; 0 if it has none.
pid_t NicOf(pid_t keeper);

// The process that follows this `baton-driver` when it dies; 0: there is none now.
pid_t TwinOf(pid_t driver);

// Kills the `baton-driver` with its twin, so that nobody follows it.
void KillUnfollowed(pid_t driver);

struct ChildOptions {
  std::string program;                                           // path
  std::vector<std::string> arguments;                            // without the program's name
  std::vector<std::pair<std::string, std::string>> environment;  // in place of ours, or besides
  std::string log_path;                                          // standard error is appended
  bool logs_output = false;         // standard output likewise, so there are no lines to read
  int signal_at_our_end = SIGKILL;  // when the starting thread ends
};

// A child process whose end cannot be missed and which cannot outlive the test. Time-outs are as
// for Patient (wait_until.h).
//
// Thread-safety: none. Start it from a thread that lives as long as the child is to: the kernel
// ends the child when that thread ends (PR_SET_PDEATHSIG).
class ChildProcess {
 public:
  static absl::StatusOr<std::unique_ptr<ChildProcess>> Start(const ChildOptions& options);
  // Kills it with SIGKILL if it still runs.
  ~ChildProcess();

  pid_t pid() const { return pid_; }
  // A process that it started and that runs, by the name of its program; 0: none does.
  pid_t FindChild(const std::string& name) const;
  const std::string& log_path() const { return log_path_; }

  // Through the pidfd: never reaches a process that took the pid over.
  absl::Status Signal(int signal);
  bool HasEnded();

  // Returns the status of waitpid(2). kDeadlineExceeded: it still runs.
  absl::StatusOr<int> WaitEnd(std::chrono::milliseconds timeout);
  // SIGTERM; exit status 0 is expected.
  absl::Status Terminate(std::chrono::milliseconds timeout);
  // SIGKILL, and returns when the process is gone.
  absl::Status Kill(std::chrono::milliseconds timeout = std::chrono::seconds(10));

  // The next line of its standard output, without the newline. kUnavailable: it has closed it.
  absl::StatusOr<std::string> ReadLine(std::chrono::milliseconds timeout);
  absl::StatusOr<std::string> ReadLineBefore(std::chrono::steady_clock::time_point deadline);
  // Skips lines that begin otherwise.
  absl::StatusOr<std::string> ReadLineWith(const std::string& beginning,
                                           std::chrono::milliseconds timeout);
  absl::Status WriteLine(const std::string& line);  // to its standard input
  void CloseInput() { input_.Reset(); }

  // The last lines of its log, for messages about failures.
  std::string LogTail(size_t bytes = 4000) const;

 private:
  ChildProcess() = default;

  std::string name_;
  std::string log_path_;
  pid_t pid_ = -1;
  FileDescriptor pidfd_;
  FileDescriptor input_;
  FileDescriptor output_;
  std::string buffer_;  // read, not yet returned
  bool reaped_ = false;
  int status_ = 0;
};

}  // namespace baton::harness

#endif  // TESTS_HARNESS_CHILD_PROCESS_H_
