// Output to an ANSI terminal, and input from it.
#ifndef SUPERVISOR_CLI_TERMINAL_H_
#define SUPERVISOR_CLI_TERMINAL_H_

#include <string>

#include "lib/base/file_descriptor.h"

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

}  // namespace baton

#endif  // SUPERVISOR_CLI_TERMINAL_H_
