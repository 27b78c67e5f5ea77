// Follows the upgrade of a service's program to its outcome, and replaces Baton's own processes
// under running services (`baton upgrade --baton`).
#ifndef SUPERVISOR_CLI_UPGRADES_H_
#define SUPERVISOR_CLI_UPGRADES_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "supervisor/cli/invocation.h"

namespace baton {

absl::StatusOr<v1::ListUpgradesResponse> ListUpgrades(Invocation* invocation,
                                                      const std::string& service);
bool IsOver(const v1::Upgrade& upgrade);
bool IsSame(const v1::Upgrade& one, const v1::Upgrade& other);

// "/opt/kv-1.1 --fast"
std::string FormatProgram(const v1::Upgrade& upgrade);

// Waits until the upgrade is over, and prints its phases on standard error. Control may be away in
// between, for as long as any answer may take.
absl::StatusOr<v1::Upgrade> WaitUntilOver(Invocation* invocation, const std::string& service,
                                          v1::Upgrade upgrade);
void PrintUpgrade(std::ostream& out, const std::string& service, const v1::Upgrade& upgrade,
                  const TableStyle& style);
// Returns OK if an upgrade that is over has ended as asked. `undo`: the operator asked to undo it,
// not to complete it.
absl::Status Judge(Invocation* invocation, const std::string& service, const v1::Upgrade& upgrade,
                   bool undo);

struct BatonUpgrade {
  std::string service;       // only its keeper is replaced; empty: all keepers, control, batond
  std::string canary;        // services whose keepers come first, by names or as "25%"
  double watch_seconds = 0;  // each new process is watched for so long; 0: long enough
  bool dry_run = false;
};

// Replaces one process after the other with the program that is at its path now. With a canary, the
// other keepers follow together once those of the canary have been watched. Stops at the first
// process that does not stay, and says why. kAborted: the new process has ended, and the former
// program may be back.
absl::Status UpgradeBaton(Invocation* invocation, const BatonUpgrade& upgrade);

}  // namespace baton

#endif  // SUPERVISOR_CLI_UPGRADES_H_
