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

// The command line asks either to run with complete options, or to exit with a code at once
// (help, version, or a problem: already printed).
std::variant<CommandLine, int> ParseCommandLine(int argc, char** argv, const OwnProgram& own);

}  // namespace baton

#endif  // SUPERVISOR_BATOND_OPTIONS_H_
