#include "supervisor/cli/cli.h"

#include <algorithm>
#include <cstdlib>

#include "CLI/CLI.hpp"
#include "lib/base/version.h"
#include "supervisor/cli/commands.h"
#include "supervisor/cli/session.h"

namespace baton {
namespace {

constexpr char kFooter[] =
    "Data goes to standard output, messages to standard error. JSON carries the fields of\n"
    "proto/baton/v1 under their names there, 64-bit numbers as strings.\n"
    "Exit codes: 0 ok, 1 the request failed, 2 bad usage, 3 Baton unreachable (batond, or the\n"
    "keeper of the service), 4 not found, 5 permission denied, 6 timed out.";

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

void AddGlobalOptions(CLI::App* app, Session* session) {
  session->state_dir = DefaultStateDir();
  app->add_option("--state-dir", session->state_dir, "batond's directory")
      ->type_name("DIR")
      ->capture_default_str();
  app->add_option("--socket", session->socket,
                  "operator socket [$BATON_SOCKET, or operator.sock in the state dir]")
      ->type_name("PATH");
  app->add_option_function<std::string>(
         "-o,--output", [session](const std::string& format) { session->json = format == "json"; },
         "table (for people) or json (for programs) [table]")
      ->type_name("FORMAT")
      ->check(CLI::IsMember({"table", "json"}));
  app->add_option("--timeout", session->timeout_seconds,
                  "seconds to wait for an answer, and for a control that is being restarted")
      ->type_name("S")
      ->check(CLI::Range(0.001, 86400.0))
      ->capture_default_str();
}

// The environment is for those who say nothing on the command line.
void ReadEnvironment(const CLI::App& app, Session* session) {
  const char* socket = std::getenv("BATON_SOCKET");
  if (socket == nullptr || app.count("--socket") > 0 || app.count("--state-dir") > 0) return;
  session->socket = socket;
}

}  // namespace

int RunCli(std::vector<std::string> arguments, std::istream& in, bool interactive,
           std::ostream& out, std::ostream& err) {
  CLI::App app("Looks at and operates Baton, the supervisor of RDMA services.", "baton");
  Session session{.out = out, .err = err, .in = in, .interactive = interactive};
  app.set_version_flag("--version", std::string("baton ") + kRelease);
  app.footer(kFooter);
  app.require_subcommand(1);
  app.fallthrough();
  AddGlobalOptions(&app, &session);
  AddStatusCommands(&app, &session);
  AddDoctorCommand(&app, &session);
  AddServiceCommands(&app, &session);
  AddWorkerCommands(&app, &session);
  AddShardCommands(&app, &session);
  AddConnectionCommands(&app, &session);
  AddHandoffCommand(&app, &session);
  AddUpgradeCommands(&app, &session);
  AddEventsCommand(&app, &session);
  AddInspectCommands(&app, &session);
  const auto mark = std::find(arguments.begin(), arguments.end(), "--");
  if (mark != arguments.end()) {
    session.program_arguments.emplace(mark + 1, arguments.end());
    arguments.erase(mark, arguments.end());
  }
  try {
    std::reverse(arguments.begin(), arguments.end());  // as CLI11 takes them
    app.parse(std::move(arguments));
    if (session.program_arguments && !session.takes_program_arguments) {
      throw CLI::ExtrasError("baton", {"\"--\" and what follows: only `upgrade` starts a program"});
    }
  } catch (const CLI::ParseError& error) {
    return app.exit(error, out, err) == 0 ? kExitOk : kExitUsage;
  }
  ReadEnvironment(app, &session);
  const absl::Status status = session.action();
  if (session.connection) {
    for (const std::string& warning : session.connection->warnings()) {
      err << "warning: " << warning << '\n';
    }
  }
  if (!status.ok()) err << "error: " << status.message() << '\n';
  out.flush();
  return ExitCodeOf(status);
}

}  // namespace baton
