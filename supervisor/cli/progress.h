#ifndef SUPERVISOR_CLI_PROGRESS_H_
#define SUPERVISOR_CLI_PROGRESS_H_

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include "supervisor/cli/session.h"

namespace baton {

// Says on standard error what a command waits for, as long as the object lives. With -o json it
// says nothing.
//
// On a terminal it is one line with the time since the start, which is updated, and removed at the
// end. It appears after Console::patience_seconds. Elsewhere each Tell() prints a line at once, and
// the constructor's text is printed after as many seconds.
//
// Nobody else may write to standard error meanwhile. One thread calls it.
class Progress {
 public:
  // `what`: what the command does, for example "handing over service kv". `awaited`: what it waits
  // for.
  Progress(Session* session, std::string what, std::string awaited);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // The command now waits for `awaited`. Elsewhere than on a terminal, prints `line` if it differs
  // from the last line.
  void Tell(const std::string& awaited, const std::string& line);

 private:
  using Clock = std::chrono::steady_clock;

  void Run();
  void Draw();  // REQUIRES: mutex_

  Session* const session_;
  const int terminal_;
  const std::string what_;
  const Clock::time_point begun_ = Clock::now();
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string awaited_;    // guarded by mutex_
  std::string last_line_;  // guarded by mutex_
  bool drawn_ = false;     // guarded by mutex_
  bool over_ = false;      // guarded by mutex_
  std::thread thread_;     // last: it uses all of them
};

}  // namespace baton

#endif  // SUPERVISOR_CLI_PROGRESS_H_
