// A status in a message of one of Baton's protocols: the fields `status_code` and `status_message`,
// which hold absl::StatusCode and the text. A message without them says OK.
#ifndef LIB_CHANNEL_CARRIED_STATUS_H_
#define LIB_CHANNEL_CARRIED_STATUS_H_

#include <string>

#include "absl/status/status.h"
#include "lib/base/status.h"

namespace baton {

template <typename Message>
absl::Status StatusIn(const Message& message) {
  return absl::Status(static_cast<absl::StatusCode>(message.status_code()),
                      message.status_message());
}

// Sets the status that `message` carries. Other fields stay as they are.
template <typename Message>
void SetStatus(const absl::Status& status, Message* message) {
  message->set_status_code(static_cast<int>(status.code()));
  message->set_status_message(std::string(MessageOf(status)));
}

}  // namespace baton

#endif  // LIB_CHANNEL_CARRIED_STATUS_H_
