#include "supervisor/keeper/programs/program_output.h"

#include <chrono>
#include <utility>

#include "lib/base/clock.h"
#include "lib/loop/timers.h"

namespace baton::keeper {
namespace {

// The pause after a read that left something, so that a program that prints without end does not
// keep the loop busy.
constexpr std::chrono::milliseconds kPause(5);
// More than a pipe holds, and bounded, because a process may go on printing.
constexpr int kMostReadsAtEnd = 16;

}  // namespace

// Queued handlers keep it alive after its ProgramOutput.
struct ProgramOutput::State {
  State(boost::asio::io_context& loop, FileDescriptor reader, std::string whose)
      : descriptor(loop, reader.Release()), pause(loop), lines(std::move(whose)) {}

  boost::asio::posix::stream_descriptor descriptor;
  boost::asio::steady_timer pause;
  driver_process::OutputLines lines;
};

ProgramOutput::ProgramOutput(boost::asio::io_context& loop, FileDescriptor reader,
                             std::string whose)
    : state_(std::make_shared<State>(loop, std::move(reader), std::move(whose))) {
  Await(state_);
}

ProgramOutput::~ProgramOutput() { Finish(*state_); }

void ProgramOutput::Await(const std::shared_ptr<State>& state) {
  state->descriptor.async_wait(
      boost::asio::posix::stream_descriptor::wait_read,
      [state](const boost::system::error_code& error) {
        if (error || !state->descriptor.is_open()) return;
        if (!state->lines.ReadSome(state->descriptor.native_handle(), MonotonicNanoseconds())) {
          return Finish(*state);
        }
        if (state->lines.read_all()) return Await(state);
        After(state->pause, kPause, [state] {
          if (state->descriptor.is_open()) Await(state);
        });
      });
}

void ProgramOutput::Finish(State& state) {
  if (!state.descriptor.is_open()) return;
  const uint64_t now = MonotonicNanoseconds();
  for (int i = 0; i < kMostReadsAtEnd; ++i) {
    if (!state.lines.ReadSome(state.descriptor.native_handle(), now) || state.lines.read_all()) {
      break;
    }
  }
  state.lines.End(now);
  state.pause.cancel();
  state.descriptor.close();
}

}  // namespace baton::keeper
