#include "lib/base/file_descriptor.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <cerrno>

#include "lib/base/errno_status.h"

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

absl::StatusOr<Pipe> MakePipe(int flags) {
  int ends[2];
  if (pipe2(ends, flags | O_CLOEXEC) != 0) return ErrnoStatus(errno, "pipe2 (see RLIMIT_NOFILE)");
  return Pipe{FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

}  // namespace baton
