// Why a service is down, as its last driver or keeper left it in the state directory, for callers
// that cannot ask it any more. A process that was killed leaves nothing.
#ifndef SUPERVISOR_CONFIG_DOWN_REASON_H_
#define SUPERVISOR_CONFIG_DOWN_REASON_H_

#include <string>
#include <string_view>

namespace baton {

// By the driver or keeper, when it ends; without `why` when the service is up. What cannot be
// written is not told.
void SetDownReason(const std::string& state_dir, const std::string& service, std::string_view why);

// One line of printable UTF-8, at most 1024 bytes; empty: nothing is known. For event loops, too:
// what is no regular file is neither waited for nor told.
std::string DownReason(const std::string& state_dir, const std::string& service);

}  // namespace baton

#endif  // SUPERVISOR_CONFIG_DOWN_REASON_H_
