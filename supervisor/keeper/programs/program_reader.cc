#include "supervisor/keeper/programs/program_reader.h"

#include <signal.h>
#include <unistd.h>

#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>

#include "absl/strings/str_cat.h"
#include "lib/base/pidfd.h"
#include "lib/base/status_macros.h"
#include "lib/loop/await_readable.h"
#include "lib/loop/timers.h"
#include "supervisor/driver/workers/reap_program.h"

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

}  // namespace baton::keeper
