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

// Parses "HOST:PORT". An IPv6 literal, and nothing else, has brackets; the host is not empty. Does
// not look whether there is such a host. std::nullopt: `text` is of another form.
std::optional<HostPort> ParseHostPort(std::string_view text);

}  // namespace baton

#endif  // LIB_TEXT_HOST_PORT_H_
