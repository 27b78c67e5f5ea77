#include "lib/nic/call.h"

#include <sys/socket.h>

#include <cerrno>

#include "lib/base/errno_status.h"

namespace baton::nic {

absl::StatusOr<FileDescriptor> MakeChannel(Call* call) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) != 0) {
    return ErrnoStatus(errno, "a channel's socket (see the NIC's RLIMIT_NOFILE)");
  }
  call->answer.Reset(ends[1]);
  return FileDescriptor(ends[0]);
}

void Notify(const FileDescriptor& channel) {
  const uint8_t event = 1;
  (void)send(channel.get(), &event, sizeof(event), MSG_DONTWAIT | MSG_NOSIGNAL);
}

}  // namespace baton::nic
