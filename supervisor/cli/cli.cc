#include "supervisor/cli/cli.h"

#include <algorithm>
#include <cstdlib>
#include <sstream>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "supervisor/cli/choose.h"
#include "supervisor/cli/command_line.h"
#include "supervisor/cli/commands.h"
#include "supervisor/cli/invocation.h"
#include "supervisor/cli/terminal.h"

namespace baton {
namespace {

// Returns the action's output. On a terminal it includes the action's messages, so that they stay
// on the screen.
std::pair<absl::Status, std::string> CaptureAction(Invocation* invocation, bool on_terminal) {
  std::ostringstream text;
  std::streambuf* const out = invocation->out.rdbuf(text.rdbuf());
  std::streambuf* const err = invocation->err.rdbuf();
  if (on_terminal) invocation->err.rdbuf(text.rdbuf());
  absl::Status status = invocation->action();
  invocation->PrintWarnings();
  invocation->out.rdbuf(out);
  invocation->err.rdbuf(err);
  return {std::move(status), std::move(text).str()};
}

// Does invocation->action every invocation->watch_seconds, until SIGINT, which is success. Prints
// in the same place of a terminal, elsewhere with an empty line before every look but the first.
// Once the first look has succeeded, waits for a control that goes away.
absl::Status WatchAction(Invocation* invocation) {
  const int terminal = invocation->console.terminal_out;
  Interruption interruption;
  if (terminal >= 0) invocation->out << "\x1b[2J";
  for (bool first = true; !interruption.asked(); first = false) {
    auto [status, text] = CaptureAction(invocation, terminal >= 0);
    if (interruption.asked()) break;
    if (!status.ok() && (first || !MayPass(status))) {
      invocation->out << text;
      return status;
    }
    if (!status.ok()) {
      text = absl::StrCat("error: ", status.message(), "; trying again\n");
      invocation->connection.reset();
    }
    if (terminal >= 0) {
      invocation->out << Redraw(text, SizeOf(terminal));
    } else if (status.ok()) {
      invocation->out << (first ? "" : "\n") << text;
    } else {
      invocation->err << text << std::flush;
    }
    invocation->out << std::flush;
    interruption.Wait(invocation->watch_seconds);
  }
  return absl::OkStatus();
}

// The beginning of control's "there is no service \"NAME\"; there are: …".
constexpr char kNoService[] = "there is no service \"";

// Returns the name of the service that is missing; empty: the message is about something else.
std::string MissingService(absl::string_view message) {
  if (!absl::ConsumePrefix(&message, kNoService)) return "";
  return std::string(message.substr(0, message.find('"')));
}

// Returns `status` with the CLI's own advice added.
absl::Status WithCure(Invocation* invocation, const absl::Status& status) {
  const std::string service = MissingService(status.message());
  if (!absl::IsNotFound(status) || service.empty() || !invocation->connection) return status;
  const auto known = invocation->AskServices();
  if (!known.ok()) return status;
  return absl::Status(status.code(),
                      absl::StrCat(status.message(), DidYouMean(service, NamesOf(*known))));
}

int ExitCodeOf(const absl::Status& status) {
  if (status.ok()) return kExitOk;
  if (absl::IsInvalidArgument(status)) return kExitUsage;
  if (absl::IsUnavailable(status)) return kExitUnreachable;
  if (absl::IsNotFound(status)) return kExitNotFound;
  if (absl::IsPermissionDenied(status)) return kExitPermissionDenied;
  if (absl::IsUnauthenticated(status)) return kExitPermissionDenied;
  return absl::IsDeadlineExceeded(status) ? kExitTimedOut : kExitFailed;
}

// The environment counts only if the command line names no socket.
void ReadEnvironment(const CLI::App& app, Invocation* invocation) {
  const char* socket = std::getenv("BATON_SOCKET");
  if (socket == nullptr || app.count("--socket") > 0 || app.count("--state-dir") > 0) return;
  invocation->socket = socket;
}

}  // namespace

int RunCli(std::vector<std::string> arguments, const Console& console) {
  Invocation invocation{.console = console};
  const std::unique_ptr<CLI::App> app = MakeCommandLine(&invocation);
  if (!arguments.empty() && arguments.front() == "__complete") {
    PrintCompletion(*app, {arguments.begin() + 1, arguments.end()}, &invocation);
    return kExitOk;
  }
  const auto mark = std::find(arguments.begin(), arguments.end(), "--");
  if (mark != arguments.end()) {
    invocation.program_arguments.emplace(mark + 1, arguments.end());
    arguments.erase(mark, arguments.end());
  }
  try {
    std::reverse(arguments.begin(), arguments.end());  // CLI11 takes them in reverse
    app->parse(std::move(arguments));
    if (invocation.program_arguments && !invocation.takes_program_arguments) {
      throw CLI::ExtrasError("baton", {"\"--\" and what follows: only `upgrade` starts a program"});
    }
  } catch (const CLI::Success& asked) {  // --help, --version
    return app->exit(asked, console.out, console.err);
  } catch (const CLI::ParseError& error) {
    console.err << UsageError(*app, error, invocation);
    return kExitUsage;
  }
  ReadEnvironment(*app, &invocation);
  const absl::Status status =
      invocation.watch_seconds > 0 ? WatchAction(&invocation) : invocation.action();
  invocation.PrintWarnings();
  if (!status.ok())
    console.err << invocation.Message("error: ", WithCure(&invocation, status).message()) << '\n';
  console.out.flush();
  return ExitCodeOf(status);
}

}  // namespace baton
