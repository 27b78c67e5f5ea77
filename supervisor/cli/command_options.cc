#include "supervisor/cli/command_options.h"

#include <istream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "lib/base/status.h"
#include "supervisor/cli/format.h"

namespace baton {
namespace {

constexpr double kShortestWatch = 0.1;
constexpr double kLongestWatch = 86400;

}  // namespace

CLI::App* AddNoun(CLI::App* app, const std::string& name, const std::string& description) {
  CLI::App* noun = app->add_subcommand(name, description);
  noun->require_subcommand(1);
  noun->fallthrough();
  return noun;
}

// Adds a flag with an optional value, because an option would take a positional as its value.
void AddWatchOption(CLI::App* command, Invocation* invocation) {
  auto typed = std::make_shared<std::string>();
  command->add_flag("--watch{2}", *typed, "look again every S seconds [2], until interrupted")
      ->option_text("[=S]")
      ->check(CLI::Validator(
          [invocation, typed](const std::string& text) {
            double seconds = 0;
            if (!absl::SimpleAtod(text, &seconds) || seconds < kShortestWatch ||
                seconds > kLongestWatch) {
              return absl::StrCat("\"", text, "\": give seconds, from ", kShortestWatch, " to ",
                                  kLongestWatch);
            }
            invocation->watch_seconds = seconds;
            return std::string();
          },
          ""));
}

void AddListingOptions(CLI::App* command, Invocation* invocation) {
  AddWatchOption(command, invocation);
  command->add_flag_callback(
      "--no-headers", [invocation] { invocation->style.headers = false; },
      "without the titles of the columns");
}

CLI::Option* AddChoice(CLI::App* command, const std::string& flag, std::string* value,
                       const std::vector<std::string>& choices, const std::string& description) {
  return command->add_option(flag, *value, description)
      ->type_name(absl::StrJoin(choices, "|"))
      ->check(CLI::IsMember(choices));
}

CLI::Option* AddNumber(CLI::App* command, const std::string& flag, std::optional<uint64_t>* value,
                       const std::string& type, const std::string& description) {
  return command
      ->add_option_function<uint64_t>(
          flag, [value](const uint64_t& number) { *value = number; }, description)
      ->type_name(type);
}

CLI::Option* AddSeconds(CLI::App* command, const std::string& flag, double* value, double most,
                        const std::string& description) {
  return command->add_option(flag, *value, description)
      ->type_name("S")
      ->check(CLI::Range(0.001, most));
}

void AddChangeOptions(CLI::App* command, Change* change, bool asks, Invocation* invocation) {
  command->add_flag("--dry-run", change->dry_run, "say what would be done, and do nothing");
  command->add_flag("--yes", change->yes,
                    asks ? "do not ask; needed where no terminal is there to ask at"
                         : "for scripts; this command asks nothing");
  command->add_option("--reason", invocation->reason, "why, for `baton audit`")
      ->type_name("TEXT")
      // gRPC's metadata allow nothing else.
      ->check(CLI::Validator(
          [](std::string& text) -> std::string {
            const bool plain =
                text.size() <= 256 &&
                std::all_of(text.begin(), text.end(), [](char c) { return c >= 0x20 && c < 0x7f; });
            return plain ? "" : "give at most 256 printable ASCII characters";
          },
          ""));
}

absl::Status Confirm(Invocation* invocation, const Change& change, const std::string& question,
                     const std::string& undone) {
  if (change.yes) return absl::OkStatus();
  if (invocation->interactive) {
    invocation->err << invocation->Message("", question) << " [y/N] ";
    invocation->err.flush();
    std::string answer;
    std::getline(invocation->in, answer);
    if (answer == "y" || answer == "yes") return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("not confirmed, ", undone, ": add --yes"));
}

absl::Status PrintPlan(Invocation* invocation, const absl::StatusOr<std::string>& text,
                       const google::protobuf::Message& request) {
  BATON_RETURN_IF_ERROR(text.status());
  if (invocation->json) return invocation->PrintJson(request);
  const size_t columns = invocation->style.columns;
  const std::string line = absl::StrCat("dry run: ", Printable(*text));
  invocation->out << (columns == 0 ? line : Wrap(line, 0, 0, columns)) << '\n';
  return absl::OkStatus();
}

}  // namespace baton
