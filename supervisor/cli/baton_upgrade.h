// Replaces Baton's own processes under running services: `baton upgrade --baton`.
#ifndef SUPERVISOR_CLI_BATON_UPGRADE_H_
#define SUPERVISOR_CLI_BATON_UPGRADE_H_

#include <string>

#include "absl/status/status.h"
#include "supervisor/cli/session.h"

namespace baton {

// Replaces the keeper of `service`, or those of all, one after the other, and watches each new one
// for `watch_seconds`; 0: long enough. Stops at the first that does not stay, and says why.
// kAborted: the new keeper has ended, and its driver may have gone back to the program before.
absl::Status UpgradeBaton(Session* session, const std::string& service, double watch_seconds,
                          bool dry_run);

}  // namespace baton

#endif  // SUPERVISOR_CLI_BATON_UPGRADE_H_
