// Shows the demonstration's progress as a picture in a terminal.
#ifndef TESTS_DEMO_LIVE_VIEW_H_
#define TESTS_DEMO_LIVE_VIEW_H_

#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "tests/demo/event.h"
#include "tests/demo/live_model.h"
#include "tests/demo/scenario.h"

namespace baton::demo {

// A picture is drawn again and again at one place of a terminal. The cursor is never hidden, and no
// mode of the terminal is changed: nothing has to be restored, whichever way the process ends.
// Thread-safety: none.
class Terminal {
 public:
  // The terminal that `fd` is, if one can show the picture there: at least 60 columns and 10 rows,
  // and TERM is neither missing nor "dumb". `fd` stays open for as long as the result lives.
  static std::optional<Terminal> Open(int fd);

  // The room for a frame now. One row is the cursor's, and one column stays empty: a
  // terminal that has filled the last one erases it with the rest of the line.
  FrameLook look() const;

  // Draws `frame`, whose lines fit look(), over the one before. The cursor is then below it.
  void Draw(const std::string& frame, const FrameLook& look);
  // Leaves the frame where it is: the next one is drawn below what is written until then.
  void Leave() { lines_ = 0; }

 private:
  Terminal(int fd, bool colour, bool unicode) : fd_(fd), colour_(colour), unicode_(unicode) {}

  int fd_;
  bool colour_;
  bool unicode_;
  size_t lines_ = 0;    // of the frame that is there
  size_t columns_ = 0;  // for which it was drawn
};

// Draws from a thread of its own, five times a second, so that no event waits for the terminal. The
// picture stays there when the result is destroyed.
std::unique_ptr<Progress> MakeLiveView(const DemoOptions& options, Terminal terminal);

}  // namespace baton::demo

#endif  // TESTS_DEMO_LIVE_VIEW_H_
