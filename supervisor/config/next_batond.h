// Finds the batond that follows one that died, for a process that outlives it: a service's driver,
// or control (proto/baton/internal/batond.proto).
#ifndef SUPERVISOR_CONFIG_NEXT_BATOND_H_
#define SUPERVISOR_CONFIG_NEXT_BATOND_H_

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"
#include "lib/channel/message_channel.h"
#include "proto/baton/internal/batond.pb.h"

namespace baton {

// Thread-compatible. No call blocks.
class NextBatond {
 public:
  // How long a batond that was asked may take for its answer.
  static constexpr std::chrono::seconds kAnswerTimeout{5};
  // How often the process calls Look() while it has no batond.
  static constexpr std::chrono::milliseconds kLookInterval{100};

  struct Welcome {
    FileDescriptor heart;    // for SetHeart()
    FileDescriptor channel;  // control's, in the place of kBatondVariable
    pid_t batond = 0;
  };

  // `socket`: the path at which batond takes such processes in. `lock`: the descriptor of this
  // process's lock, which the caller keeps open. `stay`: that of kStayVariable, or none.
  NextBatond(std::string socket, int lock, FileDescriptor stay)
      : socket_(std::move(socket)), lock_(lock), stay_(std::move(stay)) {}

  // Call it while there is no batond. kCancelled: batond was stopped. kNotFound: the lock file was
  // removed, so no batond can find this process.
  absl::Status CheckOneMayCome() const;

  // Asks the batond that listens now, if there is one, or takes its answer. Returns none while
  // there is no answer. An error: that batond does not take this process in, and the next call asks
  // again.
  absl::StatusOr<std::optional<Welcome>> Look(const internal::RejoinRequest& request);
  // Takes no answer to a question that another process has asked, from which this one was forked.
  void ForgetQuestion() { asked_.reset(); }

 private:
  void Ask(const internal::RejoinRequest& request);

  std::string socket_;
  int lock_;
  FileDescriptor stay_;                  // none: the process cannot see that batond was stopped
  std::optional<MessageChannel> asked_;  // a batond that has not answered yet
  std::chrono::steady_clock::time_point asked_at_;
};

}  // namespace baton

#endif  // SUPERVISOR_CONFIG_NEXT_BATOND_H_
