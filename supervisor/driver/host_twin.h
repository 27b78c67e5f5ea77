// The twin of `baton-driver`: a process that is forked from it, sleeps, and goes on in its place
// when it has died.
#ifndef SUPERVISOR_DRIVER_HOST_TWIN_H_
#define SUPERVISOR_DRIVER_HOST_TWIN_H_

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"
#include "lib/base/shared_array.h"
#include "supervisor/driver/workers/forked_child.h"

namespace baton::driver_process {

// A twin has what the process had when it was forked. So a process whose state has changed replaces
// its twin before anybody learns of the change. What changes more often lies in memory that both
// have (HostEngine::SetFollowable).
//
// Thread-compatible. The process has one thread.
class HostTwin {
 public:
  // `show`: makes the shared memory visible to the next fork (true), or hides it (false).
  // `begin_take_over`: called in a twin that follows, before it forks the next one.
  static absl::StatusOr<HostTwin> Make(std::function<absl::Status(bool)> show,
                                       std::function<void()> begin_take_over);

  // Where a call of Renew() returns.
  enum class Side {
    kOriginal,
    kTwin,  // the process that called is dead, and this one follows it
  };
  // Forks a twin, and ends the former one. The twin waits in this call, and calls `begin` first.
  // When it follows, it has forked one itself, if it could: that one follows if this one dies
  // before it has called Renew(). An error: there is no twin, or only the former one.
  absl::StatusOr<Side> Renew(const std::function<void()>& begin);

  // Ends the twin. Nobody follows this process any more.
  void End();

  // Tells the next follower what this process is dealing with, for noted(). It is forgotten if it
  // has more than kMostNoted bytes.
  static constexpr size_t kMostNoted = 1024;
  void Note(std::string_view what);
  std::string noted() const;

  // Kills a twin that is stopped, because it could not follow.
  void KillIfStopped() const;

  // Readable when the twin has ended; -1: there is none.
  int descriptor() const { return pidfd_.get(); }
  // If the twin has ended, forgets it and returns true. Call it now and then: former twins, which
  // were ended, are reaped here.
  bool Reap();
  pid_t pid() const { return pid_; }  // 0: there is none

 private:
  // Memory that both have, and forks that drive queues do not.
  struct Board {
    // No two twins have the same number, whoever forked them: one that was forked by a dead
    // process, and was never its heir, may look for its number late.
    std::atomic<uint64_t> last_number{0};
    std::atomic<uint64_t> heir{0};          // number of the twin that follows
    std::atomic<uint64_t> followed_ns{0};   // MonotonicNanoseconds() of the last succession
    std::atomic<uint32_t> early_deaths{0};  // in a row
    std::atomic<uint32_t> noted_bytes{0};
    char noted[kMostNoted] = {};
  };

  HostTwin(std::function<absl::Status(bool)> show, std::function<void()> begin_take_over,
           SharedArray<Board> board)
      : show_(std::move(show)),
        begin_take_over_(std::move(begin_take_over)),
        boards_(std::move(board)) {}

  Board& board() const { return boards_[0]; }
  absl::Status Show(bool shown);
  uint64_t NewNumber() const { return board().last_number.fetch_add(1) + 1; }
  absl::StatusOr<ForkedChild> ForkTwin(uint64_t number, const std::function<void()>& begin);
  void AwaitDeath(const FileDescriptor& original, uint64_t number);
  void BeginToFollow();
  void Replace(ForkedChild twin);
  void EndTwin();
  void ReapEnded();

  std::function<absl::Status(bool)> show_;
  std::function<void()> begin_take_over_;
  SharedArray<Board> boards_;  // one
  pid_t pid_ = 0;
  FileDescriptor pidfd_;
  std::vector<FileDescriptor> ended_;  // pidfds of former ones, until they are reaped
};

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_HOST_TWIN_H_
