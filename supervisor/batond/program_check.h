// Has another program of batond check this one's command line and configuration.
#ifndef SUPERVISOR_BATOND_PROGRAM_CHECK_H_
#define SUPERVISOR_BATOND_PROGRAM_CHECK_H_

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <functional>

#include "absl/status/status.h"
#include "supervisor/batond/own_program.h"
#include "supervisor/batond/spawn.h"

namespace baton {

// One check at a time. Single-threaded, on `io`'s thread.
class ProgramCheck {
 public:
  static constexpr std::chrono::seconds kTimeout{5};  // less than control waits
  using Done = std::function<void(const absl::Status&)>;

  explicit ProgramCheck(boost::asio::io_context& io) : end_(io), timer_(io) {}
  ~ProgramCheck() { Forget(); }

  // Runs the program that is at `own`'s path now with `own`'s arguments and --check. Calls `done`
  // once, at once or later. kAborted: another check is under way.
  void Run(const OwnProgram& own, Done done);

 private:
  void OnEnd();
  void Forget();

  std::string program_;
  Done done_;
  SpawnedProcess process_;
  boost::asio::posix::stream_descriptor end_;  // process_.pidfd, borrowed
  boost::asio::steady_timer timer_;
};

}  // namespace baton

#endif  // SUPERVISOR_BATOND_PROGRAM_CHECK_H_
