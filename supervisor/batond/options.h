#ifndef SUPERVISOR_BATOND_OPTIONS_H_
#define SUPERVISOR_BATOND_OPTIONS_H_

#include <string>
#include <variant>

#include "supervisor/batond/own_program.h"
#include "supervisor/batond/supervisor.h"

namespace baton {

struct CommandLine {
  SupervisorOptions options;
  bool check_only = false;
};

// Returns complete options, or the code to exit with at once, after it has printed help, the
// version or a problem.
std::variant<CommandLine, int> ParseCommandLine(int argc, char** argv, const OwnProgram& own);

}  // namespace baton

#endif  // SUPERVISOR_BATOND_OPTIONS_H_
