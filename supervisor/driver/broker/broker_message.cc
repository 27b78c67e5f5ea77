#include "supervisor/driver/broker/broker_message.h"

#include <sys/socket.h>

#include <cstring>

namespace baton::driver_process {

bool SendMessage(int socket, const BrokerMessage& message, int descriptor) {
  iovec bytes = {const_cast<BrokerMessage*>(&message), sizeof(message)};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr header = {};
  header.msg_iov = &bytes;
  header.msg_iovlen = 1;
  if (descriptor >= 0) {
    header.msg_control = control;
    header.msg_controllen = sizeof(control);
    cmsghdr* const item = CMSG_FIRSTHDR(&header);
    item->cmsg_level = SOL_SOCKET;
    item->cmsg_type = SCM_RIGHTS;
    item->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(item), &descriptor, sizeof(int));
  }
  return sendmsg(socket, &header, MSG_DONTWAIT | MSG_NOSIGNAL) == sizeof(message);
}

std::optional<ReceivedMessage> ReceiveMessage(int socket) {
  ReceivedMessage received;
  iovec bytes = {&received.message, sizeof(received.message)};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr header = {};
  header.msg_iov = &bytes;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof(control);
  if (recvmsg(socket, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) != sizeof(received.message)) {
    return std::nullopt;
  }
  if (const cmsghdr* const item = CMSG_FIRSTHDR(&header);
      item != nullptr && item->cmsg_level == SOL_SOCKET && item->cmsg_type == SCM_RIGHTS) {
    int descriptor;
    std::memcpy(&descriptor, CMSG_DATA(item), sizeof(int));
    received.descriptor.Reset(descriptor);
  }
  return received;
}

}  // namespace baton::driver_process
