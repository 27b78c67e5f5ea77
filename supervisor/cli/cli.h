#ifndef SUPERVISOR_CLI_CLI_H_
#define SUPERVISOR_CLI_CLI_H_

#include <istream>
#include <ostream>
#include <string>
#include <vector>

namespace baton {

// As the shell sees them; part of the interface, see --help.
enum ExitCode {
  kExitOk = 0,
  kExitFailed = 1,
  kExitUsage = 2,
  kExitUnreachable = 3,
  kExitNotFound = 4,
  kExitPermissionDenied = 5,
  kExitTimedOut = 6,
};

// `arguments` without the program's name. `interactive`: a person answers at `in`.
int RunCli(std::vector<std::string> arguments, std::istream& in, bool interactive,
           std::ostream& out, std::ostream& err);

}  // namespace baton

#endif  // SUPERVISOR_CLI_CLI_H_
