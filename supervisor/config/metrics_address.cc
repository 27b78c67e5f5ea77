#include "supervisor/config/metrics_address.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <cstdint>

#include "absl/strings/numbers.h"

namespace baton {

bool IsMetricsAddress(const std::string& text) {
  constexpr uint32_t kMaxPort = 65535;
  const size_t colon = text.rfind(':');
  uint32_t port = 0;
  if (colon == std::string::npos || !absl::SimpleAtoi(text.substr(colon + 1), &port) ||
      port > kMaxPort) {
    return false;
  }
  const std::string host = text.substr(0, colon);
  in6_addr address;
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    return inet_pton(AF_INET6, host.substr(1, host.size() - 2).c_str(), &address) == 1;
  }
  return inet_pton(AF_INET, host.c_str(), &address) == 1;
}

}  // namespace baton
