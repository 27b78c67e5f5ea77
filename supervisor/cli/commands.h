// Declares the commands, by noun, and what prints the reports of `baton inspect` and `baton doctor`
// for people.
#ifndef SUPERVISOR_CLI_COMMANDS_H_
#define SUPERVISOR_CLI_COMMANDS_H_

#include <ostream>
#include <string>
#include <vector>

#include "proto/baton/v1/doctor.pb.h"
#include "proto/baton/v1/inspect.pb.h"
#include "supervisor/cli/format.h"

namespace CLI {
class App;
}  // namespace CLI

namespace baton {

struct Invocation;

// Each of these adds its commands to `app`; a chosen command sets invocation->action. `app` and
// `invocation` must outlive the parse.
void AddStatusCommands(CLI::App* app, Invocation* invocation);  // status, version
void AddDoctorCommand(CLI::App* app, Invocation* invocation);
void AddServiceCommands(CLI::App* app, Invocation* invocation);
void AddWorkerCommands(CLI::App* app, Invocation* invocation);
void AddShardCommands(CLI::App* app, Invocation* invocation);
void AddConnectionCommands(CLI::App* app, Invocation* invocation);
void AddHandoffCommand(CLI::App* app, Invocation* invocation);
void AddUpgradeCommands(CLI::App* app, Invocation* invocation);  // upgrade, rollback, and upgrades
void AddDrainCommand(CLI::App* app, Invocation* invocation);
void AddReloadCommand(CLI::App* app, Invocation* invocation);
void AddEventsCommand(CLI::App* app, Invocation* invocation);
void AddAuditCommand(CLI::App* app, Invocation* invocation);
void AddInspectCommands(CLI::App* app, Invocation* invocation);  // inspect, snapshot
void AddTopCommand(CLI::App* app, Invocation* invocation);
void AddNewCommand(CLI::App* app, Invocation* invocation);
void AddCompletionCommand(CLI::App* app, Invocation* invocation);

// Prints the words that can stand at the end of `words`, for a shell to offer.
void PrintCompletion(const CLI::App& app, const std::vector<std::string>& words,
                     Invocation* invocation);

struct InspectionParts {
  bool queues = false;  // cursors of all connections that are shown
  bool work_requests = false;
  bool state = false;
};

void PrintInspection(std::ostream& out, const v1::Inspection& inspection,
                     const InspectionParts& parts, const TableStyle& style = {});

// Prints a line for each finding, with consequence and cure below those that need them, and the sum
// at the end.
void PrintDoctorReport(std::ostream& out, const v1::DoctorReport& report,
                       const TableStyle& style = {});

}  // namespace baton

#endif  // SUPERVISOR_CLI_COMMANDS_H_
