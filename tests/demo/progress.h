// Where the demonstration reports what it does while it does it.
#ifndef TESTS_DEMO_PROGRESS_H_
#define TESTS_DEMO_PROGRESS_H_

#include <memory>
#include <string>

#include "tests/demo/event.h"
#include "tests/demo/timeline.h"

namespace baton::demo {

// The calls come from one thread, outside of what is measured.
class Progress {
 public:
  virtual ~Progress() = default;

  // A service and its peers start, with Baton or without. `timeline_path` is the file that the peer
  // will write.
  virtual void BeginAct(const std::string& title, bool with_baton,
                        const std::string& timeline_path) = 0;
  // The act's peer has ended and has counted so much.
  virtual void EndAct(const Counters& counters) = 0;
  virtual void Begin(EventKind kind) = 0;
  // `event` of the kind that began has ended.
  virtual void End(const Event& event) = 0;
  // A line for people.
  virtual void Note(const std::string& line) = 0;
  // Others are about to write to standard error.
  virtual void Yield() = 0;
};

// Prints a line for each event to standard error, under a heading for each kind.
std::unique_ptr<Progress> MakePlainProgress();

}  // namespace baton::demo

#endif  // TESTS_DEMO_PROGRESS_H_
