// These functions send and receive the NIC's control messages, and translate their errors and other
// fields for both sides.
#ifndef LIB_NIC_CONTROL_SOCKET_H_
#define LIB_NIC_CONTROL_SOCKET_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "lib/base/file_descriptor.h"
#include "lib/nic/control_format.h"
#include "lib/verbs/verbs.h"

namespace baton::nic {

// A message, and the descriptor that came with it.
struct ControlMessage {
  std::array<uint8_t, control::kMaxControlBytes> bytes;
  size_t size = 0;
  FileDescriptor passed;
  std::vector<FileDescriptor> more;  // that came too many

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

// Returns true if nothing is left to take, and the other side has closed the socket.
bool HasEnded(int socket);

// Sends a message of at most kMaxControlBytes, with `passed` unless it is negative. Never waits.
// Returns false if the other side has closed the socket or does not read.
bool Send(int socket, absl::Span<const uint8_t> bytes, int passed);

template <typename Message>
bool SendMessage(int socket, const Message& message, int passed = -1) {
  return Send(socket, {reinterpret_cast<const uint8_t*>(&message), sizeof(message)}, passed);
}

// Return the errno for a code that a NIC's answer can have (EIO for all others), and the code for
// an errno (kInternal for all others).
uint32_t ErrnoOf(const absl::Status& status);
absl::StatusCode CodeOf(uint32_t error);

// Copies as much of `text` as there is room for, and a 0.
template <size_t kSize>
void PutText(absl::string_view text, char (&field)[kSize]) {
  const size_t size = std::min(text.size(), kSize - 1);
  std::copy_n(text.data(), size, field);
  field[size] = 0;
}
// Reads up to the first 0 or the end of the field.
template <size_t kSize>
std::string TextOf(const char (&field)[kSize]) {
  return std::string(field, std::find(field, field + kSize, 0));
}

control::Address ToControl(const verbs::Address& address);
verbs::Address FromControl(const control::Address& address);

// Requires private data that fit.
control::Parameters ToControl(const verbs::ConnectionParameters& parameters);
// kInvalidArgument: private_bytes is more than the field has.
absl::Status FromControl(const control::Parameters& message,
                         verbs::ConnectionParameters* parameters);

}  // namespace baton::nic

#endif  // LIB_NIC_CONTROL_SOCKET_H_
