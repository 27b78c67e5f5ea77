// Replaces Baton's own processes under running services: `baton upgrade --baton`.
#ifndef SUPERVISOR_CLI_BATON_UPGRADE_H_
#define SUPERVISOR_CLI_BATON_UPGRADE_H_

#include <string>

#include "absl/status/status.h"
#include "supervisor/cli/session.h"

namespace baton {

struct BatonUpgradeOptions {
  std::string service;       // empty: all, one after the other
  double watch_seconds = 0;  // that each new keeper is watched; 0: kKeeperWatchSeconds
  bool dry_run = false;
};
// A little longer than a driver gives a new program to prove itself.
inline constexpr double kKeeperWatchSeconds = 7;

// Replaces the keepers of services, one after the other. Stops at the first that does not stay, and
// says why. kAborted: the new keeper has ended, and its driver may have gone back to the program
// before.
absl::Status UpgradeBaton(Session* session, const BatonUpgradeOptions& options);

}  // namespace baton

#endif  // SUPERVISOR_CLI_BATON_UPGRADE_H_
