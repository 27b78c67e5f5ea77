#ifndef LIB_NIC_CONTROL_SOCKET_H_
#define LIB_NIC_CONTROL_SOCKET_H_

#include <sys/un.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "lib/base/file_descriptor.h"
#include "lib/nic/control_format.h"

namespace baton::nic {

// A message, and the descriptor that came with it.
struct ControlMessage {
  std::array<uint8_t, control::kMaxControlBytes> bytes;
  size_t size = 0;
  FileDescriptor passed;
  FileDescriptor second;  // if one came too many; there is room for no third one

  absl::Span<const uint8_t> span() const { return {bytes.data(), size}; }
};

enum class Received {
  kMessage,
  kNothing,       // there is none now
  kEnded,         // the other side has closed it
  kNoDescriptor,  // one came with a message, but this process has none free
  kMalformed,     // a message that is too long, or has more than one descriptor
};

// Takes the next message of a SOCK_SEQPACKET socket. Never waits.
Received Receive(int socket, ControlMessage* message);

// Sends a message of at most kMaxControlBytes, with `passed` unless it is negative. Never waits.
// Returns false if the other side has closed the socket or does not read.
bool Send(int socket, absl::Span<const uint8_t> bytes, int passed);

template <typename Message>
bool SendMessage(int socket, const Message& message, int passed = -1) {
  return Send(socket, {reinterpret_cast<const uint8_t*>(&message), sizeof(message)}, passed);
}

}  // namespace baton::nic

#endif  // LIB_NIC_CONTROL_SOCKET_H_
