// A worker's process that this keeper, or a former one, has started.
#ifndef SUPERVISOR_KEEPER_PROGRAMS_WATCHED_PROCESS_H_
#define SUPERVISOR_KEEPER_PROGRAMS_WATCHED_PROCESS_H_

#include <sys/types.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/pidfd.h"
#include "lib/loop/await_readable.h"
#include "proto/baton/internal/driver.pb.h"
#include "supervisor/keeper/programs/program.h"
#include "supervisor/keeper/programs/program_output.h"

namespace baton::keeper {

// Thread-compatible: the management loop's thread.
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
