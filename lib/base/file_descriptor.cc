#include "lib/base/file_descriptor.h"

#include <fcntl.h>
#include <sys/syscall.h>

#include <cerrno>

#include "lib/base/status.h"

namespace baton {

FileDescriptor CopyOf(int fd, int least) {
  return FileDescriptor(fcntl(fd, F_DUPFD_CLOEXEC, least));
}

absl::StatusOr<SocketPair> MakeSocketPair(int type) {
  int ends[2];
  if (socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, ends) != 0) {
    return ErrnoStatus(errno, "socketpair (see RLIMIT_NOFILE)");
  }
  return SocketPair{FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

void KeepInLine(int socket) {
  const int on = 1;
  (void)setsockopt(socket, SOL_SOCKET, SO_OOBINLINE, &on, sizeof(on));
}

// A read without room for descriptors closes them, which may wait. A look at the bytes leaves them
// where they are. The bytes that it saw are read, and none that came since.
ssize_t ReceiveBytes(int socket, msghdr* header) {
  const size_t room = header->msg_controllen;
  const ssize_t seen = recvmsg(socket, header, MSG_PEEK | MSG_DONTWAIT);
  if (seen <= 0) return seen;
  if ((header->msg_flags & MSG_CTRUNC) != 0) {
    errno = EBADMSG;
    return -1;
  }
  header->msg_iov->iov_len = static_cast<size_t>(seen);
  header->msg_controllen = room;
  return recvmsg(socket, header, MSG_DONTWAIT);
}

absl::StatusOr<Pipe> MakePipe(int flags) {
  int ends[2];
  if (pipe2(ends, flags | O_CLOEXEC) != 0) return ErrnoStatus(errno, "pipe2 (see RLIMIT_NOFILE)");
  return Pipe{FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

absl::StatusOr<FileDescriptor> OpenPidfd(pid_t process) {
  FileDescriptor pidfd(static_cast<int>(syscall(SYS_pidfd_open, process, 0)));
  if (!pidfd) return ErrnoStatus(errno, "pidfd_open (see RLIMIT_NOFILE)");
  return pidfd;
}

absl::Status AddToEpoll(int epoll, int fd, epoll_event event) {
  if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0) return absl::OkStatus();
  return ErrnoStatus(errno, "epoll_ctl(ADD); see fs.epoll.max_user_watches");
}

bool SendSignal(int pidfd, int signal) {
  return syscall(SYS_pidfd_send_signal, pidfd, signal, nullptr, 0) == 0;
}

}  // namespace baton
