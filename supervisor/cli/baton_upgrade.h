// Replaces Baton's own processes under running services: `baton upgrade --baton`.
#ifndef SUPERVISOR_CLI_BATON_UPGRADE_H_
#define SUPERVISOR_CLI_BATON_UPGRADE_H_

#include <string>

#include "absl/status/status.h"
#include "supervisor/cli/session.h"

namespace baton {

struct BatonUpgrade {
  std::string service;       // whose keeper alone is replaced; empty: all keepers, control, batond
  std::string canary;        // names of services, or "25%" of them, whose keepers are first
  double watch_seconds = 0;  // each new process is watched for so long; 0: long enough
  bool dry_run = false;
};

// Replaces one process after the other by the program that is in its place now. With a canary, the
// keepers of the others follow together once those of the canary have been watched. Stops at the
// first that does not stay, and says why. kAborted: the new process has ended, and the program
// before it may be back.
absl::Status UpgradeBaton(Session* session, const BatonUpgrade& upgrade);

}  // namespace baton

#endif  // SUPERVISOR_CLI_BATON_UPGRADE_H_
