#include "supervisor/cli/command_line.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "lib/base/version.h"
#include "supervisor/cli/command_options.h"
#include "supervisor/cli/commands.h"
#include "supervisor/cli/description.h"
#include "supervisor/cli/help.h"
#include "supervisor/cli/suggest.h"

namespace baton {
namespace {

void AddGlobalOptions(CLI::App* app, Session* session) {
  session->state_dir = DefaultStateDir();
  app->add_option_function<std::string>(
         "-o,--output",
         [session](const std::string& format) {
           session->json = format == "json";
           session->style.wide = format == "wide";
         },
         "for people or programs [table].\n"
         "wide is table with more columns or lines, where there are more; json is an object with "
         "the fields "
         "of proto/baton/v1 under their names there")
      ->type_name("table|wide|json")
      ->check(CLI::IsMember({"table", "wide", "json"}));
  app->add_option("--timeout", session->timeout_seconds,
                  "to wait for an answer, and for a control that restarts [10].\nIn seconds")
      ->type_name("S")
      ->check(CLI::Range(0.001, 86400.0));
  app->add_option(
         "--state-dir", session->state_dir,
         "of batond.\n"
         "Its directory [/run/baton for root, $XDG_RUNTIME_DIR/baton or /tmp/baton-UID for others]")
      ->type_name("DIR");
  app->add_option(
         "--socket", session->socket,
         "of operators [$BATON_SOCKET, or in DIR].\nThe UNIX socket that control listens on")
      ->type_name("PATH");
}

void AddTlsOptions(CLI::App* app, Session* session) {
  TlsTarget* tls = &session->tls;
  const auto add = [app](const char* name, std::string* value, const char* type,
                         const char* description) {
    return app->add_option(name, *value, description)->type_name(type)->group(kOverTls);
  };
  CLI::Option* address =
      add("--address", &tls->address, "HOST:PORT",
          "of operator_endpoint, on this machine or another.\nThe operators' service over TCP with "
          "mutual TLS, in the place of the socket. No call is made again there when control "
          "restarts, but by --watch and --follow");
  address->excludes("--socket")->excludes("--state-dir");
  address->needs(
      add("--tls-ca", &tls->ca_file, "FILE", "that Baton's certificate is signed by, in PEM")
          ->needs(address));
  address->needs(add("--tls-cert", &tls->certificate_file, "FILE",
                     "your certificate, in PEM.\nbatond's configuration has the name in it among "
                     "operators or viewers")
                     ->needs(address));
  address->needs(
      add("--tls-key", &tls->key_file, "FILE", "the key of --tls-cert, in PEM")->needs(address));
  add("--tls-server-name", &tls->server_name, "NAME",
      "that Baton's certificate is to have [the host of --address]")
      ->needs(address);
}

// The command that the words lead to, as far as they are known.
const CLI::App& Deepest(const CLI::App& app) {
  const auto parsed = app.get_subcommands();
  return parsed.empty() ? app : Deepest(*parsed.front());
}

std::vector<std::string> OptionNames(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::App* app = &command; app != nullptr; app = app->get_parent()) {
    for (const CLI::Option* option : OptionsOf(*app)) {
      for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    }
  }
  return names;
}

std::string Unexpected(const CLI::App& command, const std::string& word) {
  if (word.starts_with("-")) {
    return absl::StrCat("there is no option ", word, DidYouMean(word, OptionNames(command)));
  }
  std::vector<std::string> names;
  for (const CLI::App* one : SubcommandsOf(command)) names.push_back(one->get_name());
  if (names.empty()) return absl::StrCat("\"", word, "\" is one word too many");
  return absl::StrCat("there is no command \"", PathOf(command), " ", word, "\"",
                      DidYouMean(word, names), "; there are: ", absl::StrJoin(names, ", "));
}

}  // namespace

std::unique_ptr<CLI::App> MakeCommandLine(Session* session) {
  auto app = std::make_unique<CLI::App>("operates Baton, the supervisor of RDMA services", "baton");
  app->formatter(std::make_shared<Help>());
  app->set_help_flag("-h,--help", "what the command does and takes");
  app->set_version_flag("--version", std::string("baton ") + kRelease, "");
  app->require_subcommand(1);
  app->fallthrough();
  AddGlobalOptions(app.get(), session);
  AddTlsOptions(app.get(), session);
  AddStatusCommands(app.get(), session);
  AddServiceCommands(app.get(), session);
  AddWorkerCommands(app.get(), session);
  AddShardCommands(app.get(), session);
  AddConnectionCommands(app.get(), session);
  AddHandoffCommand(app.get(), session);
  AddUpgradeCommands(app.get(), session);
  AddDrainCommand(app.get(), session);
  AddReloadCommand(app.get(), session);
  AddEventsCommand(app.get(), session);
  AddAuditCommand(app.get(), session);
  AddInspectCommands(app.get(), session);
  AddTopCommand(app.get(), session);
  AddDoctorCommand(app.get(), session);
  AddCompletionCommand(app.get(), session);
  return app;
}

std::string UsageError(const CLI::App& app, const CLI::ParseError& error, const Session& session) {
  const CLI::App& command = Deepest(app);
  const std::vector<std::string> rest = app.remaining(/*recurse=*/true);
  std::string what = error.what();
  if (!rest.empty()) {
    what = Unexpected(command, rest.front());
  } else if (!SubcommandsOf(command).empty()) {
    what = absl::StrCat("a command is missing after \"", PathOf(command), "\"");
    return absl::StrCat(session.Message("error: ", what), "\n", command.help());
  }
  return absl::StrCat(session.Message("error: ", what), "\nusage: ", UsageOf(command), "\n`",
                      PathOf(command), " --help` tells more\n");
}

}  // namespace baton
