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

// 24x80 where it does not tell.
ScreenSize SizeOf(int terminal);
// The first `columns` characters of `line`, with every colour that is set in it or after them.
std::string FirstColumns(const std::string& line, size_t columns);
// `text` in the place of what was shown, as much of it as fits: long lines are cut, and the last
// one tells of lines that are left out. `text` may have colours.
std::string Redraw(const std::string& text, const ScreenSize& size);

// Signals that ask for an end (SIGINT, SIGTERM, SIGHUP) are noticed while one exists, and end the
// process no more; the second one does, after `undo`. At its end SIGTERM and SIGHUP are raised
// again. One at a time.
class Interruption {
 public:
  // `undo` may do what a signal handler may.
  explicit Interruption(void (*undo)() = nullptr);
  ~Interruption();
  Interruption(const Interruption&) = delete;
  Interruption& operator=(const Interruption&) = delete;

  bool asked() const;
  // Until one came, `seconds` have passed, or `input` (if not -1) can be read, which is told.
  bool WaitForInput(double seconds, int input);
  void Wait(double seconds) { WaitForInput(seconds, -1); }
};

// The other screen of a terminal, without a cursor, and keys as they are pressed; all as it was at
// the end. One at a time.
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
