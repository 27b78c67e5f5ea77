#ifndef LIB_NIC_CALL_H_
#define LIB_NIC_CALL_H_

#include <cstdint>
#include <cstring>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "lib/base/file_descriptor.h"
#include "lib/nic/control_format.h"

namespace baton::nic {

// A request of a client. Its bytes are a copy that the client cannot change.
struct Call {
  absl::Span<const uint8_t> bytes;
  FileDescriptor passed;                // with it
  FileDescriptor answer;                // to be passed with the reply
  uint32_t more = 0;                    // of the reply
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

// Copies the message of a call, and calls a method of its class with the copy.
template <typename Object, typename Message>
absl::StatusOr<uint32_t> Dispatch(Object* object, Call* call,
                                  absl::StatusOr<uint32_t> (Object::*method)(const Message&,
                                                                             Call*)) {
  Message message;
  if (call->bytes.size() != sizeof(message)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a message of ", call->bytes.size(), " bytes, not ", sizeof(message)));
  }
  std::memcpy(&message, call->bytes.data(), sizeof(message));
  return (object->*method)(message, call);
}

// Makes a socket that tells the client of events: `call` gets its end.
absl::StatusOr<FileDescriptor> MakeChannel(Call* call);
// Sends one byte. A full socket is readable, which is all that the client needs.
void Notify(const FileDescriptor& channel);

}  // namespace baton::nic

#endif  // LIB_NIC_CALL_H_
