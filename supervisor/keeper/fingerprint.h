// Tells requests apart in the words by which the driver knows them.
#ifndef SUPERVISOR_KEEPER_FINGERPRINT_H_
#define SUPERVISOR_KEEPER_FINGERPRINT_H_

#include <functional>
#include <string>

#include "absl/strings/str_cat.h"
#include "google/protobuf/message_lite.h"

namespace baton::keeper {

// Returns the same text for the same message in each keeper of one program.
inline std::string FingerprintOf(const google::protobuf::MessageLite& message) {
  return absl::StrCat(absl::Hex(std::hash<std::string>{}(message.SerializeAsString())));
}

}  // namespace baton::keeper

#endif  // SUPERVISOR_KEEPER_FINGERPRINT_H_
