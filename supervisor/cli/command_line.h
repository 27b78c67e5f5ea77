// The command line as a whole, described once: it is parsed by it, and --help, the manual pages and
// completion are made from it.
#ifndef SUPERVISOR_CLI_COMMAND_LINE_H_
#define SUPERVISOR_CLI_COMMAND_LINE_H_

#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "supervisor/cli/session.h"

namespace baton {

// `session` outlives it.
std::unique_ptr<CLI::App> MakeCommandLine(Session* session);

// Says what is wrong with the line that `app` failed to parse with `error`, and what to type.
std::string UsageError(const CLI::App& app, const CLI::ParseError& error, const Session& session);

// The one of `known` that was probably meant by `typed`; empty when none is near.
std::string Nearest(const std::string& typed, const std::vector<std::string>& known);
// "; did you mean \"kv\"?", or nothing.
std::string DidYouMean(const std::string& typed, const std::vector<std::string>& known);

}  // namespace baton

#endif  // SUPERVISOR_CLI_COMMAND_LINE_H_
