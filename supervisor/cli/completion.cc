#include "supervisor/cli/completion.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "supervisor/cli/description.h"

namespace baton {
namespace {

// Finds an option of the command, or of one above it, whose options it takes, too. Null: none.
const CLI::Option* FindOption(const CLI::App* command, const std::string& name) {
  for (; command != nullptr; command = command->get_parent()) {
    for (const CLI::Option* option : OptionsOf(*command)) {
      for (const std::string& known : option->get_lnames()) {
        if (name == "--" + known) return option;
      }
      for (const std::string& known : option->get_snames()) {
        if (name == "-" + known) return option;
      }
    }
  }
  return nullptr;
}

std::string LongName(const CLI::Option& option) { return option.get_name(); }

// The finished words, parsed.
struct Typed {
  const CLI::App* command;
  std::vector<std::string> positionals = {};
  std::map<std::string, std::string> options = {};
  const CLI::Option* awaits_value = nullptr;  // the last of them
  bool of_program = false;                    // "--" was typed

  void Take(const std::string& word) {
    if (of_program) return;
    if (awaits_value != nullptr) {
      options[LongName(*awaits_value)] = word;
      awaits_value = nullptr;
    } else if (word == "--") {
      of_program = true;
    } else if (word.size() > 1 && word[0] == '-') {
      TakeOption(word);
    } else {
      TakeWord(word);
    }
  }

 private:
  void TakeOption(const std::string& word) {
    const size_t equals = word.find('=');
    const CLI::Option* const option = FindOption(command, word.substr(0, equals));
    if (option == nullptr) return;
    options[LongName(*option)] = equals == std::string::npos ? "" : word.substr(equals + 1);
    if (equals == std::string::npos && !ValueOf(*option).empty()) awaits_value = option;
  }

  void TakeWord(const std::string& word) {
    for (const CLI::App* one : SubcommandsOf(*command)) {
      if (one->get_name() != word) continue;
      command = one;
      return;
    }
    positionals.push_back(word);
  }
};

class Completer {
 public:
  Completer(Typed typed, std::string word, LiveNames* names)
      : typed_(std::move(typed)), word_(std::move(word)), names_(names) {
    names_->UseOptions(typed_.options);
  }

  Completion Run() {
    if (typed_.of_program) {
      result_.files = true;
    } else if (typed_.awaits_value != nullptr) {
      AddValues(*typed_.awaits_value, "");
    } else if (word_.starts_with("--") && word_.find('=') != std::string::npos) {
      const std::string name = word_.substr(0, word_.find('='));
      const CLI::Option* const option = FindOption(typed_.command, name);
      if (option != nullptr) AddValues(*option, name + "=");
    } else if (word_.starts_with("-")) {
      AddOptions();
    } else {
      AddWords();
    }
    return std::move(result_);
  }

 private:
  void Add(std::vector<Candidate> candidates, const std::string& prefix = "") {
    for (Candidate& one : candidates) {
      one.word = prefix + one.word;
      if (one.word.starts_with(word_)) result_.candidates.push_back(std::move(one));
    }
  }

  void AddWords() {
    const auto commands = SubcommandsOf(*typed_.command);
    for (const CLI::App* one : commands) {
      Add({{one->get_name(), InShort(one->get_description())}});
    }
    if (!commands.empty()) return;
    const auto positionals = PositionalsOf(*typed_.command);
    const size_t next = typed_.positionals.size();
    if (next < positionals.size()) {
      AddValues(*positionals[next], "");
      // Where there is one service, its name may be left out.
      if (next == 0 && positionals.size() > 1 && !Service().empty()) AddValues(*positionals[1], "");
    } else {
      AddOptions();
    }
  }

  void AddOptions() {
    for (const CLI::App* app = typed_.command; app != nullptr; app = app->get_parent()) {
      for (const CLI::Option* option : OptionsOf(*app)) {
        const bool again = option->get_items_expected_max() > 1;
        if (typed_.options.count(LongName(*option)) > 0 && !again) continue;
        Add({{LongName(*option), InShort(DescriptionOf(*option))}});
      }
    }
    Add({{"--help", "what the command does and takes"}});
  }

  void AddValues(const CLI::Option& option, const std::string& prefix) {
    for (const std::string& choice : ChoicesOf(option)) Add({{choice, ""}}, prefix);
    const std::string type = option.get_positional() ? NameOf(option) : ValueOf(option);
    if (type == "SERVICE") Add(names_->Services(), prefix);
    if (type == "WORKER") Add(names_->Workers(Service()), prefix);
    if (type == "SHARD") Add(names_->Shards(Service()), prefix);
    if (type == "CONNECTION") Add(names_->Connections(Service()), prefix);
    if (type == "PATH" || type == "FILE" || type == "DIR") result_.files = true;
  }

  // The service that the words so far are about: the one that is named, or else the only one.
  std::string Service() const {
    if (!typed_.positionals.empty()) return typed_.positionals.front();
    const auto option = typed_.options.find("--service");
    if (option != typed_.options.end()) return option->second;
    const std::vector<Candidate> all = names_->Services();
    return all.size() == 1 ? all.front().word : "";
  }

  const Typed typed_;
  const std::string word_;
  LiveNames* const names_;
  Completion result_;
};

constexpr char kBash[] =
    R"(# bash completion of baton: source it, or put it into bash-completion's directory.
_baton() {
  local words=() word i
  # Readline takes "--option=value" apart.
  for ((i = 1; i <= COMP_CWORD; ++i)); do
    word=${COMP_WORDS[i]}
    if [[ ${#words[@]} -gt 0 && ${words[-1]} == --* &&
      ($word == '=' || ${COMP_WORDS[i - 1]} == '=') ]]; then
      words[-1]+=$word
    else
      words+=("$word")
    fi
  done
  local prefix=
  if [[ ${words[-1]} == --*=* ]]; then prefix=${words[-1]%%=*}=; fi
  COMPREPLY=()
  while IFS=$'\t' read -r word _; do
    if [[ $word == :files ]]; then
      compopt -o default 2>/dev/null || true
    else
      COMPREPLY+=("${word#"$prefix"}")
    fi
  done < <("${COMP_WORDS[0]}" __complete "${words[@]}" 2>/dev/null)
}
complete -F _baton baton
)";

constexpr char kZsh[] = R"(#compdef baton
# zsh completion of baton: source it after compinit, or put it as _baton into a directory of $fpath.
_baton() {
  local line
  local -a described
  while IFS= read -r line; do
    case $line in
      :files) _files; return ;;
      *$'\t'?*) described+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}") ;;
      ?*) described+=("${${line%%$'\t'*}//:/\\:}") ;;
    esac
  done < <("${words[1]}" __complete "${(@Q)words[2,CURRENT]}" 2>/dev/null)
  _describe -V baton described
}
if [[ $funcstack[1] == _baton ]]; then
  _baton "$@"
else
  compdef _baton baton
fi
)";

constexpr char kFish[] =
    R"(# fish completion of baton: source it, or put it into fish's completions directory.
function __baton_complete
    set -l words (commandline -opc) (commandline -ct)
    for line in ($words[1] __complete $words[2..-1] 2>/dev/null)
        if test "$line" = ':files'
            __fish_complete_path (commandline -ct)
        else
            printf '%s\n' $line
        end
    end
end
complete -c baton -f -k -a '(__baton_complete)'
)";

}  // namespace

Completion Complete(const CLI::App& root, const std::vector<std::string>& words, LiveNames* names) {
  Typed typed{.command = &root};
  for (size_t i = 0; i + 1 < words.size(); ++i) typed.Take(words[i]);
  return Completer(std::move(typed), words.empty() ? "" : words.back(), names).Run();
}

std::string CompletionScript(const std::string& shell) {
  if (shell == "zsh") return kZsh;
  return shell == "fish" ? kFish : kBash;
}

}  // namespace baton
