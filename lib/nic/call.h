#ifndef LIB_NIC_CALL_H_
#define LIB_NIC_CALL_H_

#include <sys/socket.h>

#include <cstdint>
#include <cstring>
#include <optional>
#include <type_traits>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "lib/base/file_descriptor.h"
#include "lib/base/status.h"
#include "lib/nic/control_format.h"

namespace baton::nic {

// A request of a client. Its bytes are a copy that the client cannot change.
struct Call {
  absl::Span<const uint8_t> bytes;
  FileDescriptor passed;                // the descriptor that came with it
  FileDescriptor answer;                // a descriptor to pass with the reply
  uint32_t more = 0;                    // the reply's `more`
  std::optional<control::Event> event;  // follows the reply
};

// A file that a client has opened. Its objects are destroyed with it.
class ClientFile {
 public:
  virtual ~ClientFile() = default;
  // Executes a call socket's message and returns the value of its reply. The caller has checked its
  // header.
  virtual absl::StatusOr<uint32_t> Execute(Call* call) = 0;
};

// Calls `method` with a copy of the call's message. A method that makes nothing returns a status.
template <typename Object, typename Result, typename Message>
absl::StatusOr<uint32_t> CallMethod(Object* object, Call* call,
                                    Result (Object::*method)(const Message&, Call*)) {
  Message message;
  if (call->bytes.size() != sizeof(message)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a message of ", call->bytes.size(), " bytes, not ", sizeof(message)));
  }
  std::memcpy(&message, call->bytes.data(), sizeof(message));
  if constexpr (std::is_same_v<Result, absl::Status>) {
    BATON_RETURN_IF_ERROR((object->*method)(message, call));
    return 0u;
  } else {
    return (object->*method)(message, call);
  }
}

// Executes a call with the method that takes its message. `what` names the kind of call socket in
// errors.
template <typename Object, typename... Results, typename... Messages>
absl::StatusOr<uint32_t> Dispatch(Object* object, Call* call, absl::string_view what,
                                  Results (Object::*... methods)(const Messages&, Call*)) {
  control::RequestHeader header;
  std::memcpy(&header, call->bytes.data(), sizeof(header));
  const auto op = static_cast<control::Op>(header.op);
  absl::StatusOr<uint32_t> result = 0u;
  if (((op == Messages::kOp && (result = CallMethod(object, call, methods), true)) || ...)) {
    return result;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("op: ", header.op, " is none of a call socket of ", what));
}

// Makes a pair of sockets that tells the client of events. Returns the NIC's end. The reply passes
// the client's end.
inline absl::StatusOr<FileDescriptor> MakeChannel(Call* call) {
  BATON_ASSIGN_OR_RETURN(SocketPair pair, MakeSocketPair(SOCK_STREAM | SOCK_NONBLOCK));
  call->answer = std::move(pair.theirs);
  return std::move(pair.ours);
}
// Sends one byte. A full socket is readable, which is all that the client needs.
inline void Notify(const FileDescriptor& channel) {
  const uint8_t event = 1;
  (void)send(channel.get(), &event, sizeof(event), MSG_DONTWAIT | MSG_NOSIGNAL);
}

}  // namespace baton::nic

#endif  // LIB_NIC_CALL_H_
