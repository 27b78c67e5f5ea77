#ifndef SUPERVISOR_CLI_CLI_H_
#define SUPERVISOR_CLI_CLI_H_

#include <istream>
#include <ostream>
#include <string>
#include <vector>

namespace baton {

namespace doctor {
class Machine;
struct Identity;
}  // namespace doctor

// Exit statuses. They are part of the interface, see --help.
enum ExitCode {
  kExitOk = 0,
  kExitFailed = 1,
  kExitUsage = 2,
  kExitUnreachable = 3,
  kExitNotFound = 4,
  kExitPermissionDenied = 5,
  kExitTimedOut = 6,
};

// Where a command line is typed and answered. What it refers to must outlive the call.
struct Console {
  std::istream& in;          // answers to questions
  std::ostream& out;         // data
  std::ostream& err;         // messages
  bool interactive = false;  // a person answers at `in`
  // Descriptors of the terminals behind `in`, `out` and `err`. -1: it is no terminal, or one
  // without escape sequences.
  int terminal_in = -1;
  int terminal_out = -1;
  int terminal_err = -1;
  // How long a command waits before it says on `err` what it waits for.
  double patience_seconds = 1;
  // The machine that `baton doctor` looks at, and the user that it looks as. Null: this machine,
  // and this process's user.
  const doctor::Machine* machine = nullptr;
  const doctor::Identity* identity = nullptr;
};

// `arguments` without the program's name.
int RunCli(std::vector<std::string> arguments, const Console& console);

}  // namespace baton

#endif  // SUPERVISOR_CLI_CLI_H_
