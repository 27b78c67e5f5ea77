// Runs a batond with fake children in directories of its own, for tests.
#ifndef TESTS_SUPERVISOR_BATOND_BATOND_PROCESS_H_
#define TESTS_SUPERVISOR_BATOND_BATOND_PROCESS_H_

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/file_descriptor.h"

namespace baton {

// How long a test waits for what must happen before it fails; nothing takes this long.
inline constexpr std::chrono::seconds kPatience{30};

// Whether `condition` became true within kPatience.
bool Eventually(const std::function<bool()>& condition);

std::string ReadWholeFile(const std::string& path);

// A private directory under /tmp (a socket's path is short), removed with everything in it.
class TemporaryDirectory {
 public:
  TemporaryDirectory();
  ~TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// The life of a child, as it logged it.
struct Life {
  std::string role;  // "keeper" or "control"
  pid_t pid;
  std::string note;
};

// A place where batonds run, one after the other or at once: state directory, fake children, log.
class Stage {
 public:
  Stage();

  std::string state_dir() const { return directory_.path() + "/state"; }
  std::string libexec() const { return directory_.path() + "/libexec"; }
  std::string path() const { return directory_.path(); }
  std::vector<Life> lives(const std::string& role) const;
  std::string log_path() const { return directory_.path() + "/lives"; }

 private:
  TemporaryDirectory directory_;
};

// One batond. Killed when it goes out of scope. Keepers that outlive it end with the Stage, whose
// directory they find removed.
class BatondProcess {
 public:
  struct Options {
    std::vector<std::string> arguments;  // after the program's name
    std::map<std::string, std::string> environment;
    uid_t run_as = 0;         // when the test is root: another user
    std::string program;      // the batond that was built, when empty
    int standard_error = -1;  // a descriptor in the place of the file behind standard_error()
    // What a service manager has kept of the batond before (LISTEN_FDS), with its names.
    std::vector<std::pair<std::string, FileDescriptor>> given_back;
  };

  // Runs `batond --dev` on `stage`, or batond with `options.arguments` when there are any.
  BatondProcess(const Stage& stage, Options options);
  explicit BatondProcess(const Stage& stage) : BatondProcess(stage, Options()) {}
  ~BatondProcess();
  BatondProcess(const BatondProcess&) = delete;
  BatondProcess& operator=(const BatondProcess&) = delete;

  pid_t pid() const { return pid_; }
  // Whether the ready line came; false also when batond ends before.
  bool WaitUntilReady();
  std::string standard_output() const;
  std::string standard_error() const;
  // Whether its standard error had `text` within kPatience.
  bool Tells(const std::string& text) const;
  // Exit code, or 128 + signal; -1 when it does not end.
  int Wait();
  void Signal(int signal) const;

 private:
  bool Reap();

  TemporaryDirectory output_;
  pid_t pid_ = -1;
  int exit_code_ = -1;
};

BatondProcess::Options WithEnvironment(const std::string& name, const std::string& value);
BatondProcess::Options WithArguments(std::vector<std::string> arguments);

// Whether the process had `variable` in its environment when its program started.
bool HasInEnvironment(pid_t pid, const std::string& variable);

// Whether the process is gone, or a zombie that only waits for its parent.
bool IsDead(pid_t pid);

std::string BuiltBatond();

}  // namespace baton

#endif  // TESTS_SUPERVISOR_BATOND_BATOND_PROCESS_H_
