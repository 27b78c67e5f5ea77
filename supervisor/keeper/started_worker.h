// The process of a worker that this keeper has started, and has to reap.
#ifndef SUPERVISOR_KEEPER_STARTED_WORKER_H_
#define SUPERVISOR_KEEPER_STARTED_WORKER_H_

#include <sys/syscall.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cstdint>
#include <string>

#include "supervisor/keeper/program.h"

namespace baton::keeper {

// Thread-compatible: the management loop's thread.
struct StartedWorker {
  StartedWorker(boost::asio::io_context& loop, StartedProgram started)
      : pid(started.pid), pidfd(loop, started.pidfd.Release()) {}

  const pid_t pid;
  boost::asio::posix::stream_descriptor pidfd;
  uint64_t worker_id = 0;  // 0: has not attached
  std::string how_ended;   // empty: it runs

  void Reap() {
    if (how_ended.empty()) how_ended = ReapProgram(pidfd.native_handle());
  }
  void Signal(int number) {
    syscall(SYS_pidfd_send_signal, pidfd.native_handle(), number, nullptr, 0);
  }
};

}  // namespace baton::keeper

#endif  // SUPERVISOR_KEEPER_STARTED_WORKER_H_
