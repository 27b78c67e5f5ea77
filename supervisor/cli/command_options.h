// Options that several commands share, spelled and described alike.
#ifndef SUPERVISOR_CLI_COMMAND_OPTIONS_H_
#define SUPERVISOR_CLI_COMMAND_OPTIONS_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "google/protobuf/repeated_field.h"
#include "supervisor/cli/invocation.h"

namespace baton {

// Help texts of a SERVICE that may be left out.
inline constexpr char kItsService[] = "its service [the only one]";
inline constexpr char kTheirService[] = "their service [the only one]";

// Adds a noun, a command that has verbs as commands.
CLI::App* AddNoun(CLI::App* app, const std::string& name, const std::string& description);

// Runs `run` with the parsed options if `command` is chosen.
template <typename Options, typename Run>
void OnChosen(CLI::App* command, Invocation* invocation, const std::shared_ptr<Options>& options,
              Run run) {
  command->callback([invocation, options, run] {
    invocation->action = [invocation, options, run] { return run(invocation, *options); };
  });
}

void AddWatchOption(CLI::App* command, Invocation* invocation);
// Adds --watch and --no-headers.
void AddListingOptions(CLI::App* command, Invocation* invocation);

// Adds a filter of a listing: "--state ready|dying". Empty: all.
CLI::Option* AddChoice(CLI::App* command, const std::string& flag, std::string* value,
                       const std::vector<std::string>& choices, const std::string& description);
// Adds a filter by a number from 0, "--shard SHARD", or by an id, "--owner WORKER".
CLI::Option* AddNumber(CLI::App* command, const std::string& flag, std::optional<uint64_t>* value,
                       const std::string& type, const std::string& description);
// Adds an option in seconds, from a millisecond to `most`.
CLI::Option* AddSeconds(CLI::App* command, const std::string& flag, double* value, double most,
                        const std::string& description);

// --dry-run, --yes and --reason, for commands that change something.
struct Change {
  bool dry_run = false;
  bool yes = false;
};
// `asks`: the command asks first, because it takes something away that does not come back by
// itself.
void AddChangeOptions(CLI::App* command, Change* change, bool asks, Invocation* invocation);
// Asks the person at the terminal before such a change; fails if there is no terminal. `question`:
// "Stop worker 1 of service kv? …". `undone`: "nothing was stopped".
absl::Status Confirm(Invocation* invocation, const Change& change, const std::string& question,
                     const std::string& undone);
// Prints the outcome of --dry-run: `text` for people, `request`, as it would be sent, as JSON.
// Returns the error of a plan that failed.
absl::Status PrintPlan(Invocation* invocation, const absl::StatusOr<std::string>& text,
                       const google::protobuf::Message& request);

// Filter and order what is listed, for every form of output.
template <typename Message, typename Predicate>
void KeepIf(google::protobuf::RepeatedPtrField<Message>* list, Predicate keep) {
  list->erase(
      std::remove_if(list->begin(), list->end(), [&](const Message& one) { return !keep(one); }),
      list->end());
}

template <typename Message, typename Key>
void SortBy(google::protobuf::RepeatedPtrField<Message>* list, Key key) {
  std::stable_sort(list->begin(), list->end(),
                   [&](const Message& a, const Message& b) { return key(a) < key(b); });
}

}  // namespace baton

#endif  // SUPERVISOR_CLI_COMMAND_OPTIONS_H_
