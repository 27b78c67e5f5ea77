#include "lib/nic/call.h"

#include <sys/socket.h>

namespace baton::nic {

absl::StatusOr<FileDescriptor> MakeChannel(Call* call) {
  BATON_ASSIGN_OR_RETURN(SocketPair pair, MakeSocketPair(SOCK_STREAM | SOCK_NONBLOCK));
  call->answer = std::move(pair.theirs);
  return std::move(pair.ours);
}

void Notify(const FileDescriptor& channel) {
  const uint8_t event = 1;
  (void)send(channel.get(), &event, sizeof(event), MSG_DONTWAIT | MSG_NOSIGNAL);
}

}  // namespace baton::nic
