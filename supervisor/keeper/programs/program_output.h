// Copies the output of a program that a keeper has started from a pipe to the keeper's log. Native
// workers print to the driver's log (worker_forks.h).
#ifndef SUPERVISOR_KEEPER_PROGRAMS_PROGRAM_OUTPUT_H_
#define SUPERVISOR_KEEPER_PROGRAMS_PROGRAM_OUTPUT_H_

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <memory>
#include <string>

#include "lib/base/file_descriptor.h"
#include "supervisor/driver/workers/output_lines.h"

namespace baton::keeper {

// Reads one pipe on the management loop. Thread-compatible: the loop's thread.
class ProgramOutput {
 public:
  // `loop` outlives what is waited for there.
  ProgramOutput(boost::asio::io_context& loop, FileDescriptor reader, std::string whose);
  // Takes what is left in the pipe, and closes it even if processes that the program has started
  // have it open.
  ~ProgramOutput();
  ProgramOutput(const ProgramOutput&) = delete;
  ProgramOutput& operator=(const ProgramOutput&) = delete;

 private:
  struct State;
  static void Await(const std::shared_ptr<State>& state);
  static void Finish(State& state);

  const std::shared_ptr<State> state_;
};

}  // namespace baton::keeper

#endif  // SUPERVISOR_KEEPER_PROGRAMS_PROGRAM_OUTPUT_H_
