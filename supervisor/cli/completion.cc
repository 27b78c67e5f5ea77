#include "supervisor/cli/completion.h"

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "supervisor/cli/command_options.h"
#include "supervisor/cli/commands.h"
#include "supervisor/cli/description.h"
#include "supervisor/cli/format.h"
#include "supervisor/cli/invocation.h"
#include "supervisor/cli/service_table.h"

namespace baton {
namespace {

// Finds an option of the command, or of a command above it, whose options it takes, too. Returns
// null if there is none.
const CLI::Option* FindOption(const CLI::App* command, const std::string& name) {
  for (; command != nullptr; command = command->get_parent()) {
    for (const CLI::Option* option : OptionsOf(*command)) {
      if (option->check_name(name)) return option;
    }
  }
  return nullptr;
}

// The finished words, parsed.
struct Typed {
  const CLI::App* command;
  std::vector<std::string> positionals = {};
  std::map<std::string, std::string> options = {};
  const CLI::Option* awaits_value = nullptr;  // an option that was typed last
  bool of_program = false;                    // "--" was typed

  void Take(const std::string& word) {
    if (of_program) return;
    if (awaits_value != nullptr) {
      options[awaits_value->get_name()] = word;
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
    options[option->get_name()] = equals == std::string::npos ? "" : word.substr(equals + 1);
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
      // If there is only one service, its name may be left out.
      if (next == 0 && positionals.size() > 1 && !Service().empty()) AddValues(*positionals[1], "");
    } else {
      AddOptions();
    }
  }

  void AddOptions() {
    for (const CLI::App* app = typed_.command; app != nullptr; app = app->get_parent()) {
      for (const CLI::Option* option : OptionsOf(*app)) {
        const bool again = option->get_items_expected_max() > 1;
        if (typed_.options.count(option->get_name()) > 0 && !again) continue;
        Add({{option->get_name(), InShort(DescriptionOf(*option))}});
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

  // Returns the service that the words so far are about: the one that they name, else the only one.
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

// Short, because a person waits for a key to take effect.
constexpr double kCompletionPatienceSeconds = 0.5;
constexpr uint32_t kMaxConnections = 1000;  // more than anybody reads

// Ignores errors.
class AskedNames final : public LiveNames {
 public:
  explicit AskedNames(Invocation* invocation) : invocation_(invocation) {}

  void UseOptions(const std::map<std::string, std::string>& options) override {
    const auto of = [&](const char* name) {
      const auto found = options.find(name);
      return found == options.end() ? std::string() : found->second;
    };
    const char* environment = std::getenv("BATON_SOCKET");
    if (!of("--state-dir").empty()) invocation_->state_dir = of("--state-dir");
    invocation_->socket = of("--socket");
    if (invocation_->socket.empty() && of("--state-dir").empty() && environment != nullptr) {
      invocation_->socket = environment;
    }
    invocation_->tls = {of("--address"), of("--tls-ca"), of("--tls-cert"), of("--tls-key"),
                        of("--tls-server-name")};
    invocation_->timeout_seconds = kCompletionPatienceSeconds;
  }

  std::vector<Candidate> Services() override {
    return Each(Ask(&Operator::ListServices, {}).services(), [](const v1::Service& one) {
      return Candidate{one.name(), StateOf(one)};
    });
  }

  std::vector<Candidate> Workers(const std::string& service) override {
    const auto request = About<v1::ListWorkersRequest>(service);
    return Each(Ask(&Operator::ListWorkers, request).workers(), [](const auto& item) {
      const v1::Worker& one = item.worker();
      return Candidate{absl::StrCat(one.id()), absl::StrCat(one.name(), " ", one.version(), ", ",
                                                            FormatState(one.state()))};
    });
  }

  std::vector<Candidate> Shards(const std::string& service) override {
    const auto request = About<v1::ListShardsRequest>(service);
    return Each(Ask(&Operator::ListShards, request).shards(), [](const auto& item) {
      return Candidate{absl::StrCat(item.shard().index()),
                       absl::StrCat("owned by ", FormatWorker(item.shard().owner_worker_id()))};
    });
  }

  std::vector<Candidate> Connections(const std::string& service) override {
    auto request = About<v1::ListConnectionsRequest>(service);
    request.set_shard(-1);
    request.set_page_size(kMaxConnections);
    return Each(Ask(&Operator::ListConnections, request).connections(), [](const auto& item) {
      const v1::Connection& one = item.connection();
      return Candidate{absl::StrCat(one.index()),
                       absl::StrCat(one.peer_address(), ", ", FormatState(one.state()))};
    });
  }

 private:
  template <typename Request, typename Response>
  Response Ask(grpc::Status (Operator::*method)(grpc::ClientContext*, const Request&, Response*),
               const Request& request) {
    return invocation_->Ask(method, request).value_or(Response());
  }

  template <typename List, typename ToCandidate>
  static std::vector<Candidate> Each(const List& list, ToCandidate to_candidate) {
    std::vector<Candidate> names;
    for (const auto& one : list) names.push_back(to_candidate(one));
    return names;
  }

  Invocation* const invocation_;
};

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

void PrintCompletion(const CLI::App& app, const std::vector<std::string>& words,
                     Invocation* invocation) {
  AskedNames names(invocation);
  const Completion completion = Complete(app, words, &names);
  for (const Candidate& one : completion.candidates) {
    invocation->out << Printable(one.word) << '\t' << Printable(one.description) << '\n';
  }
  if (completion.files) invocation->out << ":files\n";
}

void AddCompletionCommand(CLI::App* app, Invocation* invocation) {
  auto shell = std::make_shared<std::string>();
  CLI::App* command =
      app->add_subcommand("completion", "Print a script that completes baton's command lines");
  command->add_option("shell", *shell, "which is to complete them: bash, zsh or fish")
      ->type_name("bash|zsh|fish")
      ->check(CLI::IsMember(kShells))
      ->required();
  command->footer(
      "bash: baton completion bash >/usr/share/bash-completion/completions/baton; "
      "zsh: baton completion zsh >/usr/share/zsh/vendor-completions/_baton; "
      "fish: baton completion fish >/usr/share/fish/vendor_completions.d/baton.fish. Services, "
      "workers, shards and connections are those that are there when the key is pressed.");
  OnChosen(command, invocation, shell, [](Invocation* asking, const std::string& chosen) {
    asking->out << CompletionScript(chosen);
    return absl::OkStatus();
  });
}

}  // namespace baton
