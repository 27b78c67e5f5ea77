// Shows output on an ANSI terminal, reads its keys, and says there what a command waits for.
#ifndef SUPERVISOR_CLI_TERMINAL_H_
#define SUPERVISOR_CLI_TERMINAL_H_

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include "supervisor/cli/invocation.h"

namespace baton {

struct ScreenSize {
  int rows = 24;
  int columns = 80;
};

// Returns 24x80 if the terminal does not report its size.
ScreenSize SizeOf(int terminal);
// Returns the first `columns` characters of `line`, and all of its colour sequences.
std::string FirstColumns(const std::string& line, size_t columns);
// Returns output that replaces what was shown by as much of `text` as fits. Long lines are cut, and
// the last line says how many are left out. `text` may have colours.
std::string Redraw(const std::string& text, const ScreenSize& size);

// While an object lives, the first signal that asks for an end (SIGINT, SIGTERM, SIGHUP) is noted
// and does not end the process. A second one calls `undo` and ends it. The destructor raises
// SIGTERM and SIGHUP again. One object at a time.
class Interruption {
 public:
  // `undo` must be async-signal-safe.
  explicit Interruption(void (*undo)() = nullptr);
  ~Interruption();
  Interruption(const Interruption&) = delete;
  Interruption& operator=(const Interruption&) = delete;

  bool asked() const;
  // Waits until a signal came, `seconds` have passed, or `input` (if not -1) can be read. Returns
  // whether it can be read.
  bool WaitForInput(double seconds, int input);
  void Wait(double seconds) { WaitForInput(seconds, -1); }
};

// Shows the other screen of a terminal, without a cursor, and makes keys readable as they are
// pressed. The destructor restores everything. One object at a time.
class FullScreen {
 public:
  FullScreen(int terminal_in, int terminal_out);
  ~FullScreen();
  FullScreen(const FullScreen&) = delete;
  FullScreen& operator=(const FullScreen&) = delete;

  // Does what the destructor does. A signal handler may call it.
  static void Leave();
};

// The time between two looks of a command at what it waits for.
inline constexpr std::chrono::milliseconds kLookInterval(100);

// Says on standard error what a command waits for, as long as the object lives. With -o json it
// says nothing.
//
// On a terminal it is one line with the time since the start, which is updated, and removed at the
// end. It appears after Console::patience_seconds. Elsewhere each Tell() prints a line at once, and
// the constructor's text is printed after as many seconds. Nobody else may write to standard error
// meanwhile. One thread calls it.
class Progress {
 public:
  // `what`: what the command does, for example "handing over service kv". `awaited`: what it waits
  // for.
  Progress(Invocation* invocation, std::string what, std::string awaited);
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

  Invocation* const invocation_;
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

#endif  // SUPERVISOR_CLI_TERMINAL_H_
