#include "lib/base/closer.h"

#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

namespace baton {

struct Closer::Work {
  std::mutex mutex;
  std::condition_variable more;
  std::deque<FileDescriptor> descriptors;
  bool started = false;
  bool ended = false;
};

Closer::Closer() : work_(std::make_shared<Work>()) {}

Closer::~Closer() {
  const std::lock_guard lock(work_->mutex);
  work_->ended = true;
  work_->more.notify_one();
}

void Closer::Run(const std::shared_ptr<Work>& owned) {
  Work& work = *owned;
  std::unique_lock lock(work.mutex);
  for (;;) {
    work.more.wait(lock, [&work] { return work.ended || !work.descriptors.empty(); });
    if (work.descriptors.empty()) return;
    FileDescriptor descriptor = std::move(work.descriptors.front());
    work.descriptors.pop_front();
    lock.unlock();
    descriptor.Reset();
    lock.lock();
  }
}

void Closer::Close(FileDescriptor descriptor) {
  if (!descriptor) return;
  const std::lock_guard lock(work_->mutex);
  if (!work_->started) {
    try {
      std::thread(Run, work_).detach();
    } catch (const std::system_error&) {
      return;
    }
    work_->started = true;
  }
  work_->descriptors.push_back(std::move(descriptor));
  work_->more.notify_one();
}

void CloseLater(FileDescriptor descriptor) {
  if (!descriptor) return;
  static Closer& closer = *new Closer;  // outlives every thread
  closer.Close(std::move(descriptor));
}

void CloseFileLater(FileDescriptor file) {
  static Closer& closer = *new Closer;  // outlives every thread
  closer.Close(std::move(file));
}

namespace {

// Returns the first descriptor of what was received, and leaves others to CloseLater().
PassedDescriptor TakeFirst(msghdr* header) {
  PassedDescriptor first;
  for (cmsghdr* item = CMSG_FIRSTHDR(header); item != nullptr; item = CMSG_NXTHDR(header, item)) {
    if (item->cmsg_level != SOL_SOCKET || item->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (item->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(item) + i * sizeof(int), sizeof(int));
      PassedDescriptor one{FileDescriptor(fd)};
      if (!first) first = std::move(one);
    }
  }
  return first;
}

}  // namespace

// The look at the bytes duplicates the descriptor. The read then drops the one in the socket, which
// closes nothing, because the duplicate is of the same open file. If several came, the look has
// room for one only, says so, and nothing is read.
ssize_t ReceiveBytesAndOne(int socket, msghdr* header, PassedDescriptor* passed) {
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(ucred)) + CMSG_SPACE(sizeof(int))] = {};
  msghdr look = *header;
  look.msg_control = control;
  // CMSG_SPACE would be room for two.
  look.msg_controllen =
      (header->msg_controllen != 0 ? CMSG_SPACE(sizeof(ucred)) : 0) + CMSG_LEN(sizeof(int));
  const ssize_t seen = recvmsg(socket, &look, MSG_PEEK | MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (seen <= 0) return seen;
  look.msg_controllen = sizeof(control);  // CMSG_NXTHDR wants the padding of the last item, too
  PassedDescriptor first = TakeFirst(&look);
  if ((look.msg_flags & MSG_CTRUNC) != 0) {
    const int error = first ? EBADMSG : EMFILE;
    first = PassedDescriptor();
    errno = error;
    return -1;
  }
  header->msg_iov->iov_len = static_cast<size_t>(seen);
  const ssize_t got = recvmsg(socket, header, MSG_DONTWAIT);
  if (got > 0 && first) *passed = std::move(first);
  return got;
}

void CloseConnection(FileDescriptor socket) {
  // Nothing arrives afterwards. The other side sees the end, even if the Closer waits.
  shutdown(socket.get(), SHUT_RDWR);
  int unread = 0;
  if (ioctl(socket.get(), FIONREAD, &unread) == 0 && unread != 0) CloseLater(std::move(socket));
}

}  // namespace baton
