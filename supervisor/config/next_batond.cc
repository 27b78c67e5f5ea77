#include "supervisor/config/next_batond.h"

#include <poll.h>
#include <sys/stat.h>

#include <vector>

#include "lib/base/status.h"
#include "lib/channel/carried_status.h"

namespace baton {

// The pipe ends when batond has ended and the service manager does not keep it for the next batond.
absl::Status NextBatond::CheckOneMayCome() const {
  pollfd stay = {stay_.get(), POLLIN, 0};
  if (stay_ && poll(&stay, 1, /*timeout=*/0) > 0) {
    return absl::CancelledError("batond was stopped");
  }
  struct stat lock = {};
  if (fstat(lock_, &lock) != 0 || lock.st_nlink != 0) return absl::OkStatus();
  return absl::NotFoundError(
      "the state directory was removed while no batond ran, so the next one could not find this "
      "process");
}

absl::StatusOr<std::optional<NextBatond::Welcome>> NextBatond::Look(
    const internal::RejoinRequest& request) {
  if (!asked_) {
    Ask(request);
    return std::optional<Welcome>();
  }
  internal::RejoinReply reply;
  std::vector<FileDescriptor> descriptors;
  absl::Status status = asked_->Receive(&reply, /*timeout_ms=*/0, &descriptors);
  const bool waits = absl::IsDeadlineExceeded(status) &&
                     std::chrono::steady_clock::now() - asked_at_ < kAnswerTimeout;
  if (waits) return std::optional<Welcome>();
  const MessageChannel asked = *std::exchange(asked_, std::nullopt);
  if (status.ok()) status = StatusIn(reply);
  if (status.ok() && descriptors.size() < 2) {
    status = absl::InternalError("its answer does not have the two descriptors of a child");
  }
  BATON_RETURN_IF_ERROR(status);
  BATON_ASSIGN_OR_RETURN(const PeerCredentials batond, GetPeerCredentials(asked.fd()));
  stay_ = descriptors.size() > 2 ? std::move(descriptors[2]) : FileDescriptor();
  return std::optional<Welcome>(
      Welcome{std::move(descriptors[0]), std::move(descriptors[1]), batond.pid});
}

// Usually no batond listens yet, so a failure is no error.
void NextBatond::Ask(const internal::RejoinRequest& request) {
  absl::StatusOr<FileDescriptor> socket = ConnectUnix(socket_, /*timeout_ms=*/0);
  if (!socket.ok()) return;
  MessageChannel channel(*std::move(socket));
  // Does not wait: a new socket takes this message at once.
  if (!channel.Enqueue(request, {lock_}).ok() || channel.pending()) return;
  asked_.emplace(std::move(channel));
  asked_at_ = std::chrono::steady_clock::now();
}

}  // namespace baton
