// The process of a worker that this keeper has started, and has to reap.
#ifndef SUPERVISOR_KEEPER_WATCHED_PROCESS_H_
#define SUPERVISOR_KEEPER_WATCHED_PROCESS_H_

#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cstdint>
#include <string>

#include "supervisor/keeper/program.h"

namespace baton::keeper {

struct StartedProcess {
  const pid_t pid;
  uint64_t worker_id = 0;  // 0: has not attached
  std::string how_ended;   // empty: it runs
};

// Thread-compatible: the management loop's thread.
struct WatchedProcess {
  WatchedProcess(boost::asio::io_context& loop, StartedProgram started)
      : known{started.pid, 0, ""}, pidfd(loop, started.pidfd.Release()) {}

  StartedProcess known;
  boost::asio::posix::stream_descriptor pidfd;

  void Reap() {
    if (known.how_ended.empty()) known.how_ended = ReapProgram(pidfd.native_handle());
  }
  // Does nothing when it has ended. Cannot hit another process.
  void Signal(int number) {
    syscall(SYS_pidfd_send_signal, pidfd.native_handle(), number, nullptr, 0);
  }
};

}  // namespace baton::keeper

#endif  // SUPERVISOR_KEEPER_WATCHED_PROCESS_H_
