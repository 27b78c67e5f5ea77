#include "supervisor/cli/cli.h"

#include <algorithm>
#include <cstdlib>

#include "CLI/CLI.hpp"
#include "supervisor/cli/command_line.h"
#include "supervisor/cli/commands.h"
#include "supervisor/cli/cure.h"
#include "supervisor/cli/session.h"
#include "supervisor/cli/watch.h"

namespace baton {
namespace {

int ExitCodeOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return kExitOk;
    case absl::StatusCode::kInvalidArgument:
      return kExitUsage;
    case absl::StatusCode::kUnavailable:
      return kExitUnreachable;
    case absl::StatusCode::kNotFound:
      return kExitNotFound;
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated:
      return kExitPermissionDenied;
    case absl::StatusCode::kDeadlineExceeded:
      return kExitTimedOut;
    default:
      return kExitFailed;
  }
}

// The environment is for those who say nothing on the command line.
void ReadEnvironment(const CLI::App& app, Session* session) {
  const char* socket = std::getenv("BATON_SOCKET");
  if (socket == nullptr || app.count("--socket") > 0 || app.count("--state-dir") > 0) return;
  session->socket = socket;
}

}  // namespace

int RunCli(std::vector<std::string> arguments, const Console& console) {
  Session session{.console = console};
  const std::unique_ptr<CLI::App> app = MakeCommandLine(&session);
  if (!arguments.empty() && arguments.front() == "__complete") {
    PrintCompletion(*app, {arguments.begin() + 1, arguments.end()}, &session);
    return kExitOk;
  }
  const auto mark = std::find(arguments.begin(), arguments.end(), "--");
  if (mark != arguments.end()) {
    session.program_arguments.emplace(mark + 1, arguments.end());
    arguments.erase(mark, arguments.end());
  }
  try {
    std::reverse(arguments.begin(), arguments.end());  // as CLI11 takes them
    app->parse(std::move(arguments));
    if (session.program_arguments && !session.takes_program_arguments) {
      throw CLI::ExtrasError("baton", {"\"--\" and what follows: only `upgrade` starts a program"});
    }
  } catch (const CLI::Success& asked) {  // --help, --version
    return app->exit(asked, console.out, console.err);
  } catch (const CLI::ParseError& error) {
    console.err << UsageError(*app, error, session);
    return kExitUsage;
  }
  ReadEnvironment(*app, &session);
  const absl::Status status = session.watch_seconds > 0 ? Watch(&session) : session.action();
  session.PrintWarnings();
  if (!status.ok())
    console.err << session.Message("error: ", WithCure(&session, status).message()) << '\n';
  console.out.flush();
  return ExitCodeOf(status);
}

int RunCli(std::vector<std::string> arguments, std::istream& in, bool interactive,
           std::ostream& out, std::ostream& err) {
  return RunCli(std::move(arguments),
                Console{.in = in, .out = out, .err = err, .interactive = interactive});
}

}  // namespace baton
