// Addresses of configurations: IPv4 and IPv6 literals. A GID is an IPv6 literal.
#ifndef SUPERVISOR_CONFIG_IP_ADDRESS_H_
#define SUPERVISOR_CONFIG_IP_ADDRESS_H_

#include <arpa/inet.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>

namespace baton {

// An address as in an IPv6 packet. An IPv4 address is mapped into IPv6.
using IpAddress = std::array<uint8_t, 16>;

inline std::optional<IpAddress> ParseIpAddress(const std::string& text) {
  IpAddress address = {};
  if (text.find('\0') != std::string::npos) return std::nullopt;
  if (inet_pton(AF_INET6, text.c_str(), address.data()) == 1) return address;
  if (inet_pton(AF_INET, text.c_str(), address.data() + 12) != 1) return std::nullopt;
  address[10] = address[11] = 0xff;
  return address;
}

inline bool IsAddress(const std::string& text) { return ParseIpAddress(text).has_value(); }

}  // namespace baton

#endif  // SUPERVISOR_CONFIG_IP_ADDRESS_H_
