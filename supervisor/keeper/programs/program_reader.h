// Reads what /proc says of running processes without waiting for those processes.
#ifndef SUPERVISOR_KEEPER_PROGRAMS_PROGRAM_READER_H_
#define SUPERVISOR_KEEPER_PROGRAMS_PROGRAM_READER_H_

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "supervisor/keeper/programs/program.h"

namespace baton::keeper {

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

}  // namespace baton::keeper

#endif  // SUPERVISOR_KEEPER_PROGRAMS_PROGRAM_READER_H_
