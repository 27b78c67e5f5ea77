// Why a service is down. Its last driver or keeper leaves the reason in the state directory, for
// callers that cannot ask it any more. A process that was killed leaves nothing.
#ifndef SUPERVISOR_CONFIG_DOWN_REASON_H_
#define SUPERVISOR_CONFIG_DOWN_REASON_H_

#include <string>
#include <string_view>

namespace baton {

// The driver or keeper calls it when it ends, and with an empty `why` when the service is up.
// Ignores errors.
void SetDownReason(const std::string& state_dir, const std::string& service, std::string_view why);

// Returns one line of printable UTF-8, at most 1024 bytes; empty: nothing is known. Event loops may
// call it: it does not wait for a file that is no regular one, and ignores it.
std::string DownReason(const std::string& state_dir, const std::string& service);

}  // namespace baton

#endif  // SUPERVISOR_CONFIG_DOWN_REASON_H_
