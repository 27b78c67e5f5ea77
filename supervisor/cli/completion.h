// Completion: the words that can stand at the end of an unfinished command line.
#ifndef SUPERVISOR_CLI_COMPLETION_H_
#define SUPERVISOR_CLI_COMPLETION_H_

#include <map>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"

namespace baton {

struct Candidate {
  std::string word;
  std::string description;
};

// The names that exist now. Functions return nothing if the names cannot be had.
class LiveNames {
 public:
  virtual ~LiveNames() = default;
  // Called before all others, with the options that were typed, such as "--socket" with its value.
  virtual void UseOptions(const std::map<std::string, std::string>& options) = 0;
  virtual std::vector<Candidate> Services() = 0;
  virtual std::vector<Candidate> Workers(const std::string& service) = 0;  // empty: of all
  virtual std::vector<Candidate> Shards(const std::string& service) = 0;
  virtual std::vector<Candidate> Connections(const std::string& service) = 0;
};

struct Completion {
  std::vector<Candidate> candidates;  // whole words, each beginning with the last one typed
  bool files = false;                 // any file name fits
};

// `words` are those after "baton". The last one is being typed and may be empty.
Completion Complete(const CLI::App& root, const std::vector<std::string>& words, LiveNames* names);

// Returns the script for `shell`, one of kShells. It calls `baton __complete WORDS...`, which
// prints "WORD\tDESCRIPTION" lines, or ":files".
std::string CompletionScript(const std::string& shell);
inline const std::vector<std::string> kShells = {"bash", "zsh", "fish"};

}  // namespace baton

#endif  // SUPERVISOR_CLI_COMPLETION_H_
