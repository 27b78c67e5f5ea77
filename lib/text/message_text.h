// Text in messages that cross a process. A receiver refuses a whole message, or a whole session,
// for one `string` field that is not UTF-8.
#ifndef LIB_TEXT_MESSAGE_TEXT_H_
#define LIB_TEXT_MESSAGE_TEXT_H_

#include <cstddef>

#include "google/protobuf/message.h"

namespace baton {

// Returns true if every `string` field of `message`, at any depth, is UTF-8 and has at most
// `max_bytes`. Ignores maps and fields of type `bytes`.
bool HasValidText(const google::protobuf::Message& message, size_t max_bytes);

// Cuts and mends the fields that HasValidText() does not accept, as ValidUtf8() does.
void MakeTextValid(google::protobuf::Message* message, size_t max_bytes);

}  // namespace baton

#endif  // LIB_TEXT_MESSAGE_TEXT_H_
