#include "lib/nic/control_socket.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "lib/base/check.h"

namespace baton::nic {
namespace {

constexpr size_t kMaxPassed = 253;  // SCM_MAX_FD: the kernel passes no more with a message

// Takes all descriptors that came.
void TakePassed(msghdr* header, ControlMessage* message) {
  for (cmsghdr* item = CMSG_FIRSTHDR(header); item != nullptr; item = CMSG_NXTHDR(header, item)) {
    if (item->cmsg_level != SOL_SOCKET || item->cmsg_type != SCM_RIGHTS) continue;
    const size_t here = (item->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < here; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(item) + i * sizeof(int), sizeof(int));
      if (message->passed) {
        message->more.emplace_back(fd);
      } else {
        message->passed.Reset(fd);
      }
    }
  }
}

// Does what Receive() does, in one look.
Received Look(int socket, ControlMessage* message) {
  message->passed.Reset();
  message->more.clear();
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
  TakePassed(&header, message);
  // An empty message looks like an end, and is treated as one.
  if (size == 0) return Received::kEnded;
  if (!message->more.empty() || (header.msg_flags & MSG_TRUNC) != 0) return Received::kMalformed;
  message->size = static_cast<size_t>(size);
  if ((header.msg_flags & MSG_CTRUNC) != 0) {
    return message->passed ? Received::kMalformed : Received::kNoDescriptor;
  }
  return Received::kMessage;
}

struct Row {
  absl::StatusCode code;
  uint32_t error;
};
constexpr Row kRows[] = {
    {absl::StatusCode::kOk, 0},
    {absl::StatusCode::kInvalidArgument, EINVAL},
    {absl::StatusCode::kNotFound, ENOENT},
    {absl::StatusCode::kAlreadyExists, EADDRINUSE},
    {absl::StatusCode::kPermissionDenied, EACCES},
    {absl::StatusCode::kResourceExhausted, ENOSPC},
    {absl::StatusCode::kFailedPrecondition, EBUSY},
    {absl::StatusCode::kAborted, ECONNREFUSED},
    {absl::StatusCode::kUnavailable, ENOTCONN},
    {absl::StatusCode::kDeadlineExceeded, ETIMEDOUT},
    {absl::StatusCode::kDataLoss, EPROTO},
    {absl::StatusCode::kCancelled, ECANCELED},
    {absl::StatusCode::kInternal, EIO},
};

}  // namespace

// The kernel looks for a message, and then for the end. If both come in between, it reports the
// end. Nothing comes after an end, so another look finds the message.
Received Receive(int socket, ControlMessage* message) {
  const Received first = Look(socket, message);
  const bool is_message = static_cast<bool>(message->passed);  // an empty one
  if (first != Received::kEnded || is_message) return first;
  const Received second = Look(socket, message);
  return second == Received::kNothing ? Received::kEnded : second;
}

bool HasEnded(int socket) {
  uint8_t byte;
  return recv(socket, &byte, sizeof(byte), MSG_DONTWAIT | MSG_PEEK) == 0;
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

uint32_t ErrnoOf(const absl::Status& status) {
  for (const Row& row : kRows) {
    if (row.code == status.code()) return row.error;
  }
  return EIO;
}

absl::StatusCode CodeOf(uint32_t error) {
  for (const Row& row : kRows) {
    if (row.error == error) return row.code;
  }
  return absl::StatusCode::kInternal;
}

control::Address ToControl(const verbs::Address& address) {
  control::Address message;
  PutText(address.host, message.host);
  message.port = address.port;
  return message;
}

verbs::Address FromControl(const control::Address& address) {
  return {TextOf(address.host), address.port};
}

control::Parameters ToControl(const verbs::ConnectionParameters& parameters) {
  control::Parameters message;
  message.responder_resources = parameters.responder_resources;
  message.initiator_depth = parameters.initiator_depth;
  message.retry_count = parameters.retry_count;
  message.rnr_retry_count = parameters.rnr_retry_count;
  BATON_CHECK(parameters.private_data.size() <= sizeof(message.private_data));
  message.private_bytes = static_cast<uint32_t>(parameters.private_data.size());
  std::copy(parameters.private_data.begin(), parameters.private_data.end(), message.private_data);
  return message;
}

absl::Status FromControl(const control::Parameters& message,
                         verbs::ConnectionParameters* parameters) {
  if (message.private_bytes > sizeof(message.private_data)) {
    return absl::InvalidArgumentError(absl::StrCat("private_bytes: ", message.private_bytes,
                                                   ", at most ", sizeof(message.private_data)));
  }
  parameters->responder_resources = message.responder_resources;
  parameters->initiator_depth = message.initiator_depth;
  parameters->retry_count = message.retry_count;
  parameters->rnr_retry_count = message.rnr_retry_count;
  parameters->private_data.assign(reinterpret_cast<const char*>(message.private_data),
                                  message.private_bytes);
  return absl::OkStatus();
}

}  // namespace baton::nic
