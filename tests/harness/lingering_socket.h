// A descriptor for whose close nobody may have to wait.
#ifndef TESTS_HARNESS_LINGERING_SOCKET_H_
#define TESTS_HARNESS_LINGERING_SOCKET_H_

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstring>
#include <vector>

#include "lib/base/check.h"
#include "lib/base/file_descriptor.h"

namespace baton::harness {

// A socket whose last close waits for half a minute, while `listener` is open.
struct LingeringSocket {
  LingeringSocket()
      : listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)),
        lingers(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    auto* const to = reinterpret_cast<sockaddr*>(&address);
    const linger half_a_minute = {1, 30};
    BATON_CHECK(bind(listener.get(), to, size) == 0 && listen(listener.get(), 1) == 0 &&
                getsockname(listener.get(), to, &size) == 0 &&
                setsockopt(lingers.get(), SOL_SOCKET, SO_LINGER, &half_a_minute,
                           sizeof(half_a_minute)) == 0 &&
                connect(lingers.get(), to, size) == 0);
    // More than fits on the way, which nobody reads.
    const std::vector<char> bytes(1 << 20);
    while (send(lingers.get(), bytes.data(), bytes.size(), MSG_DONTWAIT) > 0) {
    }
  }

  FileDescriptor listener, lingers;
};

// Sends a byte with a descriptor, of which the receiver gets the last copy.
inline void Pass(int socket, FileDescriptor passed) {
  char byte = 0;
  iovec data = {&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr header = {};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof(control);
  cmsghdr* const item = CMSG_FIRSTHDR(&header);
  item->cmsg_level = SOL_SOCKET;
  item->cmsg_type = SCM_RIGHTS;
  item->cmsg_len = CMSG_LEN(sizeof(int));
  const int fd = passed.get();
  std::memcpy(CMSG_DATA(item), &fd, sizeof(fd));
  BATON_CHECK(sendmsg(socket, &header, MSG_NOSIGNAL) == 1);
}

}  // namespace baton::harness

#endif  // TESTS_HARNESS_LINGERING_SOCKET_H_
