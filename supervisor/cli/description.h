// The parts of a command line, for help, manual pages and completion. CLI11's description is the
// one source of all three.
#ifndef SUPERVISOR_CLI_DESCRIPTION_H_
#define SUPERVISOR_CLI_DESCRIPTION_H_

#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace baton {

// The group of the options that choose another way to Baton. Only the manual shows them, because
// --help has no room.
inline constexpr char kOverTls[] = "Over TLS";

// The group of positionals that are required although the ones before them are optional.
inline constexpr char kNeeded[] = "Needed";

// "baton worker stop"
std::string PathOf(const CLI::App& command);
// Return those that are shown, in the order of their definition.
std::vector<const CLI::App*> SubcommandsOf(const CLI::App& command);
std::vector<const CLI::Option*> PositionalsOf(const CLI::App& command);
// Without --help, which every command has.
std::vector<const CLI::Option*> OptionsOf(const CLI::App& command);
// "baton worker stop SERVICE ID [OPTIONS]"
std::string UsageOf(const CLI::App& command);

// "SERVICE" of a positional.
std::string NameOf(const CLI::Option& option);
// "-o,--output table|wide|json", "--watch[=S]"
std::string LabelOf(const CLI::Option& option);
// "table|wide|json", "S"; empty for a flag.
std::string ValueOf(const CLI::Option& option);
// Returns the first sentence of a description. Only full descriptions show the rest, which is on a
// line of its own.
std::string InShort(const std::string& description);
// Returns the words that an option takes; empty: it takes others, too.
std::vector<std::string> ChoicesOf(const CLI::Option& option);
// Returns the description, with the default ("[10]") if there is one that it does not mention.
std::string DescriptionOf(const CLI::Option& option);

}  // namespace baton

#endif  // SUPERVISOR_CLI_DESCRIPTION_H_
