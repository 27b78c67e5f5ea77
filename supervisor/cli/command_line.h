// The description of the whole command line. It parses the command line, and --help, the manual
// pages and completion are made from it.
#ifndef SUPERVISOR_CLI_COMMAND_LINE_H_
#define SUPERVISOR_CLI_COMMAND_LINE_H_

#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "supervisor/cli/invocation.h"

namespace baton {

// `invocation` must outlive the result.
std::unique_ptr<CLI::App> MakeCommandLine(Invocation* invocation);

// Says what is wrong with the line that `app` failed to parse with `error`, and what to type.
std::string UsageError(const CLI::App& app, const CLI::ParseError& error,
                       const Invocation& invocation);

// Returns the word of `known` that `typed` probably means; empty: none is near.
std::string Nearest(const std::string& typed, const std::vector<std::string>& known);
// Returns "; did you mean \"kv\"?", or nothing.
std::string DidYouMean(const std::string& typed, const std::vector<std::string>& known);

}  // namespace baton

#endif  // SUPERVISOR_CLI_COMMAND_LINE_H_
