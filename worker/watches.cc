#include "worker/watches.h"

#include <errno.h>
#include <sys/epoll.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/status.h"

namespace baton {
namespace {

const char* Advice(int error) {
  if (error == EPERM) {
    return "such a file is always readable: watch the descriptor of an io_uring that reads it";
  }
  return error == EEXIST ? "it is watched under this number" : "is the descriptor open?";
}

}  // namespace

absl::Status Watches::Add(int fd, std::function<void()> callback) {
  if (!callback) return absl::InvalidArgumentError("callback: it is empty");
  if (Find(fd) != watches_.end()) {
    return absl::AlreadyExistsError(
        absl::StrCat("descriptor ", fd, " is watched already: call Unwatch before you close one"));
  }
  if (watches_.size() >= kMost) {
    return absl::ResourceExhaustedError(
        absl::StrCat("this worker watches ", kMost,
                     " descriptors, the most that it may: watch an epoll set that has the others"));
  }
  epoll_event event = {EPOLLIN, {.u64 = next_event_}};
  if (epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) != 0) {
    const int error = errno;
    return ErrnoStatus(
        error, absl::StrCat("cannot watch descriptor ", fd, " (", Advice(error), "): epoll_ctl"));
  }
  watches_[next_event_++] = {fd,
                             std::make_shared<const std::function<void()>>(std::move(callback))};
  return absl::OkStatus();
}

void Watches::Remove(int fd) {
  const auto found = Find(fd);
  if (found == watches_.end()) return;
  // Fails if the application has closed it, and then it is in no set.
  (void)epoll_ctl(epoll_, EPOLL_CTL_DEL, fd, nullptr);
  watches_.erase(found);
}

int Watches::Run(const std::function<bool()>& commit) {
  int count = 0;
  // None is due any more if a callback throws or the commit fails: the next look finds those that
  // still are.
  for (const uint64_t event : std::exchange(due_, {})) {
    const auto found = watches_.find(event);
    if (found == watches_.end()) continue;  // another callback has removed it
    if (!commit()) return count;
    const auto callback = found->second.callback;
    ++count;
    (*callback)();
  }
  (void)commit();
  return count;
}

Watches::Map::iterator Watches::Find(int fd) {
  return std::find_if(watches_.begin(), watches_.end(),
                      [fd](const auto& entry) { return entry.second.fd == fd; });
}

}  // namespace baton
