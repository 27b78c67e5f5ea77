#include "lib/nic/control_socket.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace baton::nic {
namespace {

constexpr size_t kMaxPassed = 2;  // what CMSG_SPACE of one has room for

// Takes all descriptors that came, and returns how many there were.
size_t TakePassed(msghdr* header, ControlMessage* message) {
  size_t count = 0;
  for (cmsghdr* item = CMSG_FIRSTHDR(header); item != nullptr; item = CMSG_NXTHDR(header, item)) {
    if (item->cmsg_level != SOL_SOCKET || item->cmsg_type != SCM_RIGHTS) continue;
    const size_t here = (item->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < here; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(item) + i * sizeof(int), sizeof(int));
      (count++ == 0 ? message->passed : message->second).Reset(fd);
    }
  }
  return count;
}

}  // namespace

Received Receive(int socket, ControlMessage* message) {
  iovec data = {message->bytes.data(), message->bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxPassed)] = {};
  msghdr header = {};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof(control);
  ssize_t size = 0;
  do {
    size = recvmsg(socket, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (size < 0 && errno == EINTR);
  if (size < 0) return errno == EAGAIN ? Received::kNothing : Received::kEnded;
  message->passed.Reset();
  message->second.Reset();
  const size_t passed = TakePassed(&header, message);
  // An empty message looks like an end, and is treated as one.
  if (size == 0) return Received::kEnded;
  if (passed > 1 || (header.msg_flags & MSG_TRUNC) != 0) return Received::kMalformed;
  message->size = static_cast<size_t>(size);
  if ((header.msg_flags & MSG_CTRUNC) != 0) {
    return passed == 0 ? Received::kNoDescriptor : Received::kMalformed;
  }
  return Received::kMessage;
}

bool Send(int socket, absl::Span<const uint8_t> bytes, int passed) {
  iovec data = {const_cast<uint8_t*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr header = {};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  if (passed >= 0) {
    header.msg_control = control;
    header.msg_controllen = sizeof(control);
    cmsghdr* const item = CMSG_FIRSTHDR(&header);
    item->cmsg_level = SOL_SOCKET;
    item->cmsg_type = SCM_RIGHTS;
    item->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(item), &passed, sizeof(int));
  }
  ssize_t sent = 0;
  do {
    sent = sendmsg(socket, &header, MSG_DONTWAIT | MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent == static_cast<ssize_t>(bytes.size());
}

}  // namespace baton::nic
