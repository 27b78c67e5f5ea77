#include "worker/examples/common/address.h"

#include <cstdint>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace baton::examples {

absl::StatusOr<verbs::Address> ParseAddress(std::string_view text) {
  const size_t colon = text.rfind(':');
  uint32_t port = 0;
  if (colon == std::string_view::npos || colon == 0 ||
      !absl::SimpleAtoi(std::string(text.substr(colon + 1)), &port) || port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", std::string(text), "\" is no address: write HOST:PORT"));
  }
  std::string_view host = text.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  return verbs::Address{std::string(host), static_cast<uint16_t>(port)};
}

}  // namespace baton::examples
