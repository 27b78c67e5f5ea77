// How an upgrade goes on, and what came of it.
#ifndef SUPERVISOR_CLI_UPGRADE_PROGRESS_H_
#define SUPERVISOR_CLI_UPGRADE_PROGRESS_H_

#include <string>

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

}  // namespace baton

#endif  // SUPERVISOR_CLI_UPGRADE_PROGRESS_H_
