#ifndef WORKER_EXAMPLES_COMMON_ADDRESS_H_
#define WORKER_EXAMPLES_COMMON_ADDRESS_H_

#include <string_view>

#include "absl/status/statusor.h"
#include "lib/verbs/verbs.h"

namespace baton::examples {

// "HOST:PORT" or "[HOST]:PORT"; the brackets are for IPv6 literals.
absl::StatusOr<verbs::Address> ParseAddress(std::string_view text);

}  // namespace baton::examples

#endif  // WORKER_EXAMPLES_COMMON_ADDRESS_H_
