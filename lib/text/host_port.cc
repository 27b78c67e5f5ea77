#include "lib/text/host_port.h"

#include <charconv>

namespace baton {

std::optional<HostPort> ParseHostPort(std::string_view text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return std::nullopt;
  HostPort parsed;
  const std::string_view port = text.substr(colon + 1);
  const auto [end, error] = std::from_chars(port.begin(), port.end(), parsed.port);
  if (error != std::errc() || end != port.end()) return std::nullopt;
  std::string_view host = text.substr(0, colon);
  const bool bracketed = host.size() > 1 && host.front() == '[' && host.back() == ']';
  if (bracketed) host = host.substr(1, host.size() - 2);
  const bool ipv6 = host.find(':') != std::string_view::npos;
  if (host.empty() || bracketed != ipv6) return std::nullopt;
  parsed.host = std::string(host);
  return parsed;
}

}  // namespace baton
