#include "supervisor/cli/description.h"

#include "CLI/CLI.hpp"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace baton {

std::string PathOf(const CLI::App& command) {
  const CLI::App* const parent = command.get_parent();
  return parent == nullptr ? command.get_name()
                           : absl::StrCat(PathOf(*parent), " ", command.get_name());
}

std::vector<const CLI::App*> SubcommandsOf(const CLI::App& command) {
  return command.get_subcommands([](const CLI::App* one) { return !one->get_group().empty(); });
}

std::vector<const CLI::Option*> PositionalsOf(const CLI::App& command) {
  return command.get_options([](const CLI::Option* option) { return option->get_positional(); });
}

std::vector<const CLI::Option*> OptionsOf(const CLI::App& command) {
  return command.get_options([&](const CLI::Option* option) {
    return option->nonpositional() && !option->get_group().empty() &&
           option != command.get_help_ptr();
  });
}

std::string UsageOf(const CLI::App& command) {
  std::string usage = PathOf(command);
  if (!SubcommandsOf(command).empty()) return absl::StrCat(usage, " COMMAND [OPTIONS]");
  for (const CLI::Option* option : PositionalsOf(command)) {
    const std::string name = NameOf(*option);
    const bool needed = option->get_required() || option->get_group() == kNeeded;
    absl::StrAppend(&usage, " ", needed ? name : absl::StrCat("[", name, "]"));
  }
  for (const CLI::Option* option : OptionsOf(command)) {
    if (option->get_required()) absl::StrAppend(&usage, " ", LabelOf(*option));
  }
  return absl::StrCat(usage, " [OPTIONS]");
}

std::string NameOf(const CLI::Option& option) {
  return absl::AsciiStrToUpper(option.get_name(/*positional=*/true));
}

std::string ValueOf(const CLI::Option& option) {
  if (option.get_items_expected_max() == 0 || option.get_type_size() == 0) return "";
  // CLI11 puts what its validators accept behind a colon.
  const std::string type = option.get_type_name();
  return type.substr(0, type.find(':'));
}

std::string LabelOf(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.get_snames()) names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) names.push_back("--" + name);
  const std::string value = ValueOf(option);
  return absl::StrCat(absl::StrJoin(names, ","), value.empty() ? "" : " ", value,
                      option.get_option_text());
}

std::vector<std::string> ChoicesOf(const CLI::Option& option) {
  const std::string value = ValueOf(option);
  if (!absl::StrContains(value, '|')) return {};
  return absl::StrSplit(value, '|');
}

std::string InShort(const std::string& description) {
  return description.substr(0, description.find(".\n"));
}

std::string DescriptionOf(const CLI::Option& option) {
  const std::string& text = option.get_description();
  const std::string value = option.get_default_str();
  return value.empty() ? text : absl::StrCat(text, " [", value, "]");
}

}  // namespace baton
