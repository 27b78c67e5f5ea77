#ifndef LIB_TEXT_HOST_PORT_H_
#define LIB_TEXT_HOST_PORT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace baton {

struct HostPort {
  std::string host;  // without brackets
  uint16_t port = 0;
};

// "HOST:PORT", with brackets around an IPv6 literal; of no other kind, and not without a host.
// Whether there is such a host is not looked at.
std::optional<HostPort> ParseHostPort(std::string_view text);

}  // namespace baton

#endif  // LIB_TEXT_HOST_PORT_H_
