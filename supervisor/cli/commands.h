// The commands, by noun. Each function adds its commands to `app`; a chosen command sets
// session->action. `app` and `session` must outlive the parse.
#ifndef SUPERVISOR_CLI_COMMANDS_H_
#define SUPERVISOR_CLI_COMMANDS_H_

#include <string>
#include <vector>

namespace CLI {
class App;
}  // namespace CLI

namespace baton {

struct Session;

void AddStatusCommands(CLI::App* app, Session* session);  // status, version
void AddDoctorCommand(CLI::App* app, Session* session);
void AddServiceCommands(CLI::App* app, Session* session);
void AddWorkerCommands(CLI::App* app, Session* session);
void AddShardCommands(CLI::App* app, Session* session);
void AddConnectionCommands(CLI::App* app, Session* session);
void AddHandoffCommand(CLI::App* app, Session* session);
void AddUpgradeCommands(CLI::App* app, Session* session);  // upgrade, rollback, and upgrades
void AddDrainCommand(CLI::App* app, Session* session);
void AddReloadCommand(CLI::App* app, Session* session);
void AddEventsCommand(CLI::App* app, Session* session);
void AddAuditCommand(CLI::App* app, Session* session);
void AddInspectCommands(CLI::App* app, Session* session);  // inspect, snapshot
void AddTopCommand(CLI::App* app, Session* session);
void AddNewCommand(CLI::App* app, Session* session);
void AddCompletionCommand(CLI::App* app, Session* session);

// Prints the words that can stand at the end of `words`, for a shell to offer.
void PrintCompletion(const CLI::App& app, const std::vector<std::string>& words, Session* session);

}  // namespace baton

#endif  // SUPERVISOR_CLI_COMMANDS_H_
