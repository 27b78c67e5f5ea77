#ifndef SUPERVISOR_CLI_PROGRESS_H_
#define SUPERVISOR_CLI_PROGRESS_H_

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include "supervisor/cli/session.h"

namespace baton {

// Says on standard error what a command waits for, while one exists. Nothing with -o json.
//
// On a terminal: one line with the time since the start, written anew until the end, which takes it
// away. It appears when Console::patience_seconds have passed. Elsewhere: a line for each Tell() at
// once, and one for what the constructor is given when that has lasted as long.
//
// Nobody else writes to standard error meanwhile. One thread calls it.
class Progress {
 public:
  // `what` is done, for example "handing over service kv", and waits for `awaited`.
  Progress(Session* session, std::string what, std::string awaited);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // It waits for something else, or for less of it. Elsewhere than on a terminal, `line` is printed
  // when it is not the last one.
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
