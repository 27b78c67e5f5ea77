#include "supervisor/cli/command_line.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "lib/base/version.h"
#include "supervisor/cli/command_options.h"
#include "supervisor/cli/commands.h"
#include "supervisor/cli/description.h"
#include "supervisor/cli/format.h"
#include "supervisor/config/state_files.h"

namespace baton {
namespace {

constexpr size_t kColumns = 80;
constexpr char kNoBreak[] = "\x01";
constexpr size_t kWidestLabel = 30;  // wider labels have their description below
constexpr char kExitCodes[] =
    "Exit: 1 failed, 2 usage, 3 Baton unreachable, 4 not found, 5 denied, 6 timed out";
constexpr char kExitCodesInShort[] =
    "Exit codes: 0 ok, 1 failed, 2 bad usage, and others: see `baton --help`.";

std::string Paragraph(const std::string& text) { return Wrap(text, 0, 0, kColumns) + "\n"; }

using Rows = std::vector<std::pair<std::string, std::string>>;  // label, description

std::string Columns(const Rows& rows) {
  size_t width = 0;
  for (const auto& [label, description] : rows) {
    if (label.size() <= kWidestLabel) width = std::max(width, label.size());
  }
  const size_t indent = width + 4;
  std::string text;
  for (const auto& [label, description] : rows) {
    absl::StrAppend(&text, "  ", label);
    const size_t column = label.size() + 2;
    const bool below = column + 2 > indent;
    absl::StrAppend(&text, below ? "\n" : "", std::string(below ? indent : indent - column, ' '),
                    Wrap(description, indent, indent, kColumns), "\n");
  }
  return text;
}

const CLI::App& RootOf(const CLI::App& app) {
  return app.get_parent() == nullptr ? app : RootOf(*app.get_parent());
}

// Returns one line with the options that every command has; baton(1) describes them.
std::string CommonOptions(const CLI::App& root) {
  std::vector<std::string> all;
  for (const CLI::Option* option : OptionsOf(root)) {
    if (option->get_items_expected_max() == 0) continue;  // --version
    if (option->get_group() == kOverTls) continue;
    // A label stays on its line.
    all.push_back(absl::StrReplaceAll(LabelOf(*option), {{" ", kNoBreak}}));
  }
  return absl::StrReplaceAll(Paragraph(absl::StrCat("Also: ", absl::StrJoin(all, ", "), ".")),
                             {{kNoBreak, " "}});
}

// The --help of every command: at most a screen of 24 lines with 80 columns, and a prompt.
std::string MakeHelp(const CLI::App* app, const std::string& /*name*/,
                     CLI::AppFormatMode /*mode*/) {
  const bool is_root = app->get_parent() == nullptr;
  const std::string usage = absl::StrCat("Usage: ", UsageOf(*app));
  std::string text = is_root
                         ? Paragraph(absl::StrCat(usage, " | --version; ", app->get_description()))
                         : Paragraph(usage) + Paragraph(app->get_description());
  Rows rows;
  for (const CLI::App* one : SubcommandsOf(*app)) {
    rows.emplace_back(one->get_name(), InShort(one->get_description()));
  }
  for (const CLI::Option* one : PositionalsOf(*app)) {
    rows.emplace_back(NameOf(*one), DescriptionOf(*one));
  }
  if (!is_root) {
    for (const CLI::Option* one : OptionsOf(*app)) {
      rows.emplace_back(LabelOf(*one), DescriptionOf(*one));
    }
  }
  absl::StrAppend(&text, Columns(rows));
  const std::string footer = app->get_footer();
  if (!footer.empty()) absl::StrAppend(&text, Paragraph(footer));
  absl::StrAppend(&text, CommonOptions(RootOf(*app)),
                  Paragraph(is_root ? kExitCodes : kExitCodesInShort));
  return text;
}

void AddGlobalOptions(CLI::App* app, Invocation* invocation) {
  invocation->state_dir = DefaultStateDir();
  app->add_option_function<std::string>(
         "-o,--output",
         [invocation](const std::string& format) {
           invocation->json = format == "json";
           invocation->style.wide = format == "wide";
         },
         "for people or programs [table].\n"
         "wide is table with more columns or lines, where there are more; json is an object with "
         "the fields "
         "of proto/baton/v1 under their names there")
      ->type_name("table|wide|json")
      ->check(CLI::IsMember({"table", "wide", "json"}));
  app->add_option("--timeout", invocation->timeout_seconds,
                  "to wait for an answer, and for a control that restarts [10].\nIn seconds")
      ->type_name("S")
      ->check(CLI::Range(0.001, 86400.0));
  app->add_option(
         "--state-dir", invocation->state_dir,
         "of batond.\n"
         "Its directory [/run/baton for root, $XDG_RUNTIME_DIR/baton or /tmp/baton-UID for others]")
      ->type_name("DIR");
  app->add_option(
         "--socket", invocation->socket,
         "of operators [$BATON_SOCKET, or in DIR].\nThe UNIX socket that control listens on")
      ->type_name("PATH");
}

void AddTlsOptions(CLI::App* app, Invocation* invocation) {
  TlsTarget* tls = &invocation->tls;
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

// Returns the command that the known words lead to.
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

// Returns the Levenshtein distance: letters to insert, remove or replace.
size_t Distance(const std::string& from, const std::string& to) {
  std::vector<size_t> row(to.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 1; i <= from.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= to.size(); ++j) {
      const size_t replaced = diagonal + (from[i - 1] == to[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row.back();
}

}  // namespace

std::unique_ptr<CLI::App> MakeCommandLine(Invocation* invocation) {
  auto app = std::make_unique<CLI::App>("operates Baton's RDMA services", "baton");
  app->formatter_fn(MakeHelp);
  app->set_help_flag("-h,--help", "what the command does and takes");
  app->set_version_flag("--version", std::string("baton ") + kRelease, "");
  app->require_subcommand(1);
  app->fallthrough();
  for (void (*const add)(CLI::App*, Invocation*) :
       {AddGlobalOptions, AddTlsOptions, AddStatusCommands, AddServiceCommands, AddWorkerCommands,
        AddShardCommands, AddConnectionCommands, AddHandoffCommand, AddUpgradeCommands,
        AddDrainCommand, AddReloadCommand, AddEventsCommand, AddAuditCommand, AddInspectCommands,
        AddTopCommand, AddDoctorCommand, AddNewCommand, AddCompletionCommand}) {
    add(app.get(), invocation);
  }
  return app;
}

std::string UsageError(const CLI::App& app, const CLI::ParseError& error,
                       const Invocation& invocation) {
  const CLI::App& command = Deepest(app);
  const std::vector<std::string> rest = app.remaining(/*recurse=*/true);
  std::string what = error.what();
  if (!rest.empty()) {
    what = Unexpected(command, rest.front());
  } else if (!SubcommandsOf(command).empty()) {
    what = absl::StrCat("a command is missing after \"", PathOf(command), "\"");
    return absl::StrCat(invocation.Message("error: ", what), "\n", command.help());
  }
  return absl::StrCat(invocation.Message("error: ", what), "\nusage: ", UsageOf(command), "\n`",
                      PathOf(command), " --help` tells more\n");
}

std::string Nearest(const std::string& typed, const std::vector<std::string>& known) {
  const std::string wanted = absl::AsciiStrToLower(typed);
  const size_t far = std::max<size_t>(2, wanted.size() / 3) + 1;
  std::string nearest;
  size_t least = far;
  for (const std::string& candidate : known) {
    const std::string name = absl::AsciiStrToLower(candidate);
    // A word that was typed in part is nearer than any that was misspelt.
    size_t distance = Distance(wanted, name);
    if (wanted.size() >= 2 && name.starts_with(wanted)) distance = 0;
    // Two words that have nothing in common are not each other's misspelling.
    if (distance >= std::max(wanted.size(), name.size())) continue;
    if (distance >= least) continue;
    least = distance;
    nearest = candidate;
  }
  return nearest;
}

std::string DidYouMean(const std::string& typed, const std::vector<std::string>& known) {
  const std::string nearest = Nearest(typed, known);
  return nearest.empty() ? "" : absl::StrCat("; did you mean \"", nearest, "\"?");
}

}  // namespace baton
