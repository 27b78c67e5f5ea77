#include "supervisor/keeper/programs/program_output.h"

#include <signal.h>
#include <unistd.h>

#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>

#include "absl/strings/str_cat.h"
#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "lib/channel/waits.h"
#include "supervisor/driver/workers/output_lines.h"
#include "supervisor/driver/workers/spawn_plan.h"

namespace baton::keeper {

// Lives until its baton-launch has ended, even if the reader is destroyed: the keeper has to reap
// it.
struct ProgramReader::Reading {
  Reading(boost::asio::io_context& loop, StartedReading started_reading, Done then,
          std::weak_ptr<int> count)
      : started(std::move(started_reading)),
        pidfd(loop, started.pidfd.Release()),
        overdue(loop),
        done(std::move(then)),
        under_way(std::move(count)) {}

  void Tell(absl::StatusOr<const StartedReading*> ended) {
    const Done then = std::exchange(done, nullptr);
    if (then && under_way.lock()) then(std::move(ended));
  }

  StartedReading started;
  boost::asio::posix::stream_descriptor pidfd;
  boost::asio::steady_timer overdue;
  Done done;
  std::weak_ptr<int> under_way;
};

void ProgramReader::Read(pid_t pid, uint32_t uid, uint32_t gid, ProgramDone done) {
  Begin(pid, -1, [uid, gid, done = std::move(done)](absl::StatusOr<const StartedReading*> ended) {
    done(ended.ok() ? TakeReading(**ended, uid, gid) : ended.status());
  });
}

void ProgramReader::ReadMaps(pid_t pid, int file, std::function<void(absl::StatusOr<bool>)> done) {
  Begin(pid, file, [done = std::move(done)](absl::StatusOr<const StartedReading*> ended) {
    done(ended.ok() ? TakeMapsFile(**ended) : ended.status());
  });
}

void ProgramReader::Begin(pid_t pid, int file, Done done) {
  const absl::Status status = Start(pid, file, done);
  if (status.ok()) return;
  boost::asio::post(loop_, [status, done = std::move(done), alive = std::weak_ptr(under_way_)] {
    if (alive.lock()) done(status);
  });
}

absl::Status ProgramReader::Start(pid_t pid, int file, const Done& done) {
  if (*under_way_ >= kMostAtOnce) {
    return absl::UnavailableError(absl::StrCat(
        kMostAtOnce, " processes are being looked at, and their memory does not come: end them"));
  }
  BATON_ASSIGN_OR_RETURN(StartedReading started, StartReading(pid, launcher_, file));
  ++*under_way_;
  const auto reading = std::make_shared<Reading>(loop_, std::move(started), done, under_way_);
  AwaitReadable(reading->pidfd, [reading] {
    (void)driver_process::ReapProgram(reading->pidfd.native_handle());
    reading->overdue.cancel();
    if (const auto count = reading->under_way.lock()) --*count;
    reading->Tell(&reading->started);
  });
  After(reading->overdue, timeout_, [reading, pid, this_long = timeout_] {
    if (!reading->done) return;
    (void)SendSignal(reading->pidfd.native_handle(), SIGKILL);
    reading->Tell(absl::DeadlineExceededError(absl::StrCat(
        "what process ", pid, " runs cannot be read from /proc: its memory has not come for ",
        this_long.count(), " ms; see what it waits for (cat /proc/", pid, "/stack)")));
  });
  return absl::OkStatus();
}

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
