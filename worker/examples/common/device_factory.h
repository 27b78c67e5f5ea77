// These functions find devices by name, for programs that own one themselves, and parse addresses.
#ifndef WORKER_EXAMPLES_COMMON_DEVICE_FACTORY_H_
#define WORKER_EXAMPLES_COMMON_DEVICE_FACTORY_H_

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "lib/text/text.h"
#include "lib/verbs/verbs.h"

namespace baton::examples {

// "HOST:PORT" or "[HOST]:PORT"; the brackets are for IPv6 literals.
inline absl::StatusOr<verbs::Address> ParseAddress(std::string_view text) {
  const std::optional<HostPort> parsed = ParseHostPort(text);
  if (!parsed) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", std::string(text), "\" is no address: write HOST:PORT"));
  }
  return verbs::Address{parsed->host, parsed->port};
}

// `name`: "soft", "rdma" (the only RDMA device of the machine) or "rdma:NAME".
absl::StatusOr<std::unique_ptr<verbs::Device>> OpenDevice(std::string_view name);

}  // namespace baton::examples

#endif  // WORKER_EXAMPLES_COMMON_DEVICE_FACTORY_H_
