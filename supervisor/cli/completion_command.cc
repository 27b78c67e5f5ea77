#include <algorithm>
#include <cstdlib>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "supervisor/cli/commands.h"
#include "supervisor/cli/completion.h"
#include "supervisor/cli/format.h"
#include "supervisor/cli/service_table.h"
#include "supervisor/cli/session.h"

namespace baton {
namespace {

// Somebody waits for a key to take effect.
constexpr double kPatienceSeconds = 0.5;
constexpr uint32_t kMaxConnections = 1000;  // more than anybody reads

// Says nothing of what fails.
class AskedNames final : public LiveNames {
 public:
  explicit AskedNames(Session* session) : session_(session) {}

  void UseOptions(const std::map<std::string, std::string>& options) override {
    const auto of = [&](const char* name) {
      const auto found = options.find(name);
      return found == options.end() ? std::string() : found->second;
    };
    const char* environment = std::getenv("BATON_SOCKET");
    if (!of("--state-dir").empty()) session_->state_dir = of("--state-dir");
    session_->socket = of("--socket");
    if (session_->socket.empty() && of("--state-dir").empty() && environment != nullptr) {
      session_->socket = environment;
    }
    session_->tls = {of("--address"), of("--tls-ca"), of("--tls-cert"), of("--tls-key"),
                     of("--tls-server-name")};
    session_->timeout_seconds = kPatienceSeconds;
  }

  std::vector<Candidate> Services() override {
    std::vector<Candidate> names;
    const auto response = Ask(&OperatorClient::ListServices, v1::ListServicesRequest());
    for (const v1::Service& one : response.services()) names.push_back({one.name(), StateOf(one)});
    return names;
  }

  std::vector<Candidate> Workers(const std::string& service) override {
    v1::ListWorkersRequest request;
    request.set_service(service);
    std::vector<Candidate> names;
    const auto response = Ask(&OperatorClient::ListWorkers, request);
    for (const auto& item : response.workers()) {
      const v1::Worker& one = item.worker();
      names.push_back({absl::StrCat(one.id()), absl::StrCat(one.name(), " ", one.version(), ", ",
                                                            FormatState(one.state()))});
    }
    return names;
  }

  std::vector<Candidate> Shards(const std::string& service) override {
    v1::ListShardsRequest request;
    request.set_service(service);
    std::vector<Candidate> names;
    const auto response = Ask(&OperatorClient::ListShards, request);
    for (const auto& item : response.shards()) {
      const uint64_t owner = item.shard().owner_worker_id();
      names.push_back({absl::StrCat(item.shard().index()),
                       owner == 0 ? "owned by nobody" : absl::StrCat("owned by worker ", owner)});
    }
    return names;
  }

  std::vector<Candidate> Connections(const std::string& service) override {
    v1::ListConnectionsRequest request;
    request.set_service(service);
    request.set_shard(-1);
    request.set_page_size(kMaxConnections);
    std::vector<Candidate> names;
    const auto response = Ask(&OperatorClient::ListConnections, request);
    for (const auto& item : response.connections()) {
      const v1::Connection& one = item.connection();
      names.push_back({absl::StrCat(one.index()),
                       absl::StrCat(one.peer_address(), ", ", FormatState(one.state()))});
    }
    return names;
  }

 private:
  template <typename Request, typename Response>
  Response Ask(absl::StatusOr<Response> (OperatorClient::*method)(const Request&),
               const Request& request) {
    const absl::StatusOr<OperatorClient*> client = session_->Connect();
    if (!client.ok()) return {};
    absl::StatusOr<Response> response = ((*client)->*method)(request);
    return response.ok() ? *std::move(response) : Response();
  }

  Session* const session_;
};

}  // namespace

void PrintCompletion(const CLI::App& app, const std::vector<std::string>& words, Session* session) {
  AskedNames names(session);
  const Completion completion = Complete(app, words, &names);
  for (const Candidate& one : completion.candidates) {
    session->out << Printable(one.word) << '\t' << Printable(one.description) << '\n';
  }
  if (completion.files) session->out << ":files\n";
}

void AddCompletionCommand(CLI::App* app, Session* session) {
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
  command->callback([session, shell] {
    session->action = [session, shell] {
      session->out << CompletionScript(*shell);
      return absl::OkStatus();
    };
  });
}

}  // namespace baton
