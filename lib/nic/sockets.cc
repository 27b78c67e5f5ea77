#include "lib/nic/sockets.h"

#include <netinet/in.h>
#include <netinet/tcp.h>

#include <cerrno>

#include "lib/base/errno_status.h"

namespace baton::verbs::soft {
Address PeerAddressOf(int fd) {
  SocketAddress address;
  getpeername(fd, address.get(), &address.size);
  return FromSocketAddress(*address.get());
}

absl::StatusOr<FileDescriptor> OpenSocket(const SocketAddress& address) {
  FileDescriptor fd(
      socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP));
  if (!fd) return ErrnoStatus(errno, "socket (out of descriptors: raise RLIMIT_NOFILE)");
  return fd;
}

void SetNoDelay(int fd) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

}  // namespace baton::verbs::soft
