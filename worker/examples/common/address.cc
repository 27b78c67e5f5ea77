#include "worker/examples/common/address.h"

#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "lib/text/host_port.h"

namespace baton::examples {

absl::StatusOr<verbs::Address> ParseAddress(std::string_view text) {
  const std::optional<HostPort> parsed = ParseHostPort(text);
  if (!parsed) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", std::string(text), "\" is no address: write HOST:PORT"));
  }
  return verbs::Address{parsed->host, parsed->port};
}

}  // namespace baton::examples
