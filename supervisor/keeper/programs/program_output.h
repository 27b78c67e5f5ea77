// Reads what /proc says of running processes, and the output of those that a keeper has started.
#ifndef SUPERVISOR_KEEPER_PROGRAMS_PROGRAM_OUTPUT_H_
#define SUPERVISOR_KEEPER_PROGRAMS_PROGRAM_OUTPUT_H_

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "lib/base/file_descriptor.h"
#include "supervisor/keeper/programs/program.h"

namespace baton::keeper {

// Reads what /proc says of running processes without waiting for those processes.
// Thread-compatible: the management loop's thread.
class ProgramReader {
 public:
  static constexpr std::chrono::milliseconds kTimeout{5'000};  // less than operators wait
  static constexpr int kMostAtOnce = 4;  // those that hang after their timeout count, too

  // `loop` outlives it.
  ProgramReader(boost::asio::io_context& loop, std::string launcher,
                std::chrono::milliseconds timeout = kTimeout)
      : loop_(loop), launcher_(std::move(launcher)), timeout_(timeout) {}

  // Reads the program of process `pid`. Calls `done` once, from the loop, unless the reader is
  // destroyed before. kDeadlineExceeded: the process's memory has not come in time. kUnavailable:
  // kMostAtOnce readings are under way.
  void Read(pid_t pid, uint32_t uid, uint32_t gid, ProgramDone done);

  // Reads whether a process maps `file`, and calls `done` as Read does. kPermissionDenied: its
  // mappings are hidden from this process. All other errors say nothing about the process.
  void ReadMaps(pid_t pid, int file, std::function<void(absl::StatusOr<bool>)> done);

 private:
  // Gets the reading once its baton-launch has ended, or the reason why there is none.
  using Done = std::function<void(absl::StatusOr<const StartedReading*>)>;
  struct Reading;

  void Begin(pid_t pid, int file, Done done);
  absl::Status Start(pid_t pid, int file, const Done& done);

  boost::asio::io_context& loop_;
  const std::string launcher_;
  const std::chrono::milliseconds timeout_;
  const std::shared_ptr<int> under_way_ = std::make_shared<int>(0);
};

// Copies the output of a program that a keeper has started from a pipe to the keeper's log. Native
// workers print to the driver's log (worker_forks.h). Thread-compatible: the management loop's
// thread.
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
