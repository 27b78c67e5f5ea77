// How an upgrade of a service's program goes on, and what came of it; and the replacement of
// Baton's own processes under running services: `baton upgrade --baton`.
#ifndef SUPERVISOR_CLI_UPGRADES_H_
#define SUPERVISOR_CLI_UPGRADES_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "supervisor/cli/session.h"

namespace baton {

absl::StatusOr<v1::ListUpgradesResponse> ListUpgrades(Session* session, const std::string& service);
bool IsOver(const v1::Upgrade& upgrade);
bool IsSame(const v1::Upgrade& one, const v1::Upgrade& other);

// "/opt/kv-1.1 --fast"
std::string FormatProgram(const v1::Upgrade& upgrade);

// Until it is over; phases are told on standard error. Control may be away in between; nobody waits
// for it longer than for any answer.
absl::StatusOr<v1::Upgrade> WaitUntilOver(Session* session, const std::string& service,
                                          v1::Upgrade upgrade);
void PrintUpgrade(std::ostream& out, const std::string& service, const v1::Upgrade& upgrade,
                  const TableStyle& style);
// Whether one that is over ended as asked. `undo`: it was to be undone, and not to complete.
absl::Status Judge(Session* session, const std::string& service, const v1::Upgrade& upgrade,
                   bool undo);

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

#endif  // SUPERVISOR_CLI_UPGRADES_H_
