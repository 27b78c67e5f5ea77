// The commands, by noun. Each function adds its commands to `app`; a chosen one sets
// session->action. `app` and `session` outlive the parse.
#ifndef SUPERVISOR_CLI_COMMANDS_H_
#define SUPERVISOR_CLI_COMMANDS_H_

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
void AddUpgradeCommands(CLI::App* app, Session* session);  // upgrade, rollback, upgrades
void AddEventsCommand(CLI::App* app, Session* session);
void AddInspectCommands(CLI::App* app, Session* session);  // inspect, snapshot

}  // namespace baton

#endif  // SUPERVISOR_CLI_COMMANDS_H_
