// Shows the demonstration's progress as a picture in a terminal.
#ifndef TESTS_DEMO_LIVE_VIEW_H_
#define TESTS_DEMO_LIVE_VIEW_H_

#include <memory>

#include "tests/demo/progress.h"
#include "tests/demo/scenario.h"
#include "tests/demo/terminal.h"

namespace baton::demo {

// Draws from a thread of its own, five times a second, so that no event waits for the terminal. The
// picture stays there when the result is destroyed.
std::unique_ptr<Progress> MakeLiveView(const DemoOptions& options, Terminal terminal);

}  // namespace baton::demo

#endif  // TESTS_DEMO_LIVE_VIEW_H_
