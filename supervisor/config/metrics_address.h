#ifndef SUPERVISOR_CONFIG_METRICS_ADDRESS_H_
#define SUPERVISOR_CONFIG_METRICS_ADDRESS_H_

#include <string>

namespace baton {

// Whether it is ADDRESS:PORT, an IPv4 or a bracketed IPv6 address. Port 0 is any that is free.
bool IsMetricsAddress(const std::string& text);

}  // namespace baton

#endif  // SUPERVISOR_CONFIG_METRICS_ADDRESS_H_
