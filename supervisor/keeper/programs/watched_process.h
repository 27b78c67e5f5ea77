// Watches the process of a worker, and says how long a keeper waits before it starts another worker
// in its place.
#ifndef SUPERVISOR_KEEPER_PROGRAMS_WATCHED_PROCESS_H_
#define SUPERVISOR_KEEPER_PROGRAMS_WATCHED_PROCESS_H_

#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/file_descriptor.h"
#include "lib/base/pauses.h"
#include "lib/channel/waits.h"
#include "proto/baton/internal/driver.pb.h"
#include "proto/baton/v1/types.pb.h"
#include "supervisor/keeper/programs/program.h"
#include "supervisor/keeper/programs/program_output.h"

namespace baton::keeper {

// How long a keeper waits before it starts a worker in the place of one that ended.
class RestartDelay {
 public:
  // Notes that a worker ended after `lived_ns`. `served`: it, or another since its start, has
  // committed as an owner.
  void NoteEnd(uint64_t lived_ns, bool served, const v1::Policy& policy) {
    std::chrono::milliseconds first = kShortest;
    std::chrono::milliseconds most = served ? kLongestOfServers : kLongest;
    if (policy.has_restart()) {
      first = std::chrono::milliseconds(policy.restart().first_delay_ms());
      most = std::chrono::milliseconds(policy.restart().max_delay_ms());
    }
    const bool is_short = lived_ns < kLongLifeNs;
    const bool in_a_row = std::exchange(last_was_short_, is_short) && is_short;
    back_off_.SetLimits(first, most);
    if (!in_a_row) back_off_.Reset();
    length_ = std::chrono::duration_cast<std::chrono::milliseconds>(back_off_.Next());
  }

  std::chrono::milliseconds length() const { return length_; }

 private:
  static constexpr std::chrono::milliseconds kShortest{10};
  static constexpr std::chrono::milliseconds kLongest{5000};
  // The limit while owners commit: they may die of a message that the next one is spared (poison).
  static constexpr std::chrono::milliseconds kLongestOfServers{100};
  static constexpr uint64_t kLongLifeNs = 2'000'000'000;

  BackOff back_off_{kShortest, kLongest};
  std::chrono::milliseconds length_ = kShortest;
  bool last_was_short_ = false;  // the life of the last worker that ended
};

// A worker's process that this keeper, or a former one, has started. Thread-compatible: the
// management loop's thread.
struct WatchedProcess {
  // `programs`, which has started it, outlives this.
  WatchedProcess(boost::asio::io_context& loop, WorkerPrograms& programs, StartedProgram started)
      : programs(programs), pidfd(loop), entered(loop) {
    known.set_pid(started.pid);
    if (started.pidfd) pidfd.assign(started.pidfd.Release());
    if (started.entered) entered.assign(started.entered.Release());
    if (!started.output) return;
    output = std::make_unique<ProgramOutput>(loop, std::move(started.output),
                                             absl::StrCat("process ", started.pid));
  }

  WorkerPrograms& programs;
  internal::StartedWorker known;
  boost::asio::posix::stream_descriptor pidfd;
  boost::asio::posix::stream_descriptor entered;  // StartedProgram's
  std::function<void(const absl::Status&)> on_entered;
  std::unique_ptr<ProgramOutput> output;  // null: it has none of its own

  // Calls `done` from the loop, with the reason why the program was not entered. The caller keeps
  // this object until then.
  void AwaitEntered(std::function<void(const absl::Status&)> done) {
    if (!entered.is_open()) {
      return boost::asio::post(pidfd.get_executor(),
                               [done = std::move(done)] { done(absl::OkStatus()); });
    }
    on_entered = std::move(done);
    AwaitReadable(entered, [this] { TellEntered(); });
  }
  // Calls AwaitEntered()'s `done` now, unless it was called before. REQUIRES: the program was
  // entered, or the process has ended.
  void TellEntered() {
    const auto done = std::exchange(on_entered, nullptr);
    if (!done) return;
    const absl::Status status = ReadEntered(entered.native_handle());
    entered.close();
    done(status);
  }

  void Reap() {
    if (!known.how_ended().empty()) return;
    known.set_how_ended(programs.Reap(known.pid(), pidfd.native_handle()));
    if (!known.how_ended().empty()) output.reset();
  }
  // Does nothing when the process has ended. Cannot hit another process.
  void Signal(int number) { (void)SendSignal(pidfd.native_handle(), number); }
};

}  // namespace baton::keeper

#endif  // SUPERVISOR_KEEPER_PROGRAMS_WATCHED_PROCESS_H_
