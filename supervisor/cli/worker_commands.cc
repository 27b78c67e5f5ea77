#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "lib/base/status_macros.h"
#include "supervisor/cli/commands.h"
#include "supervisor/cli/format.h"
#include "supervisor/cli/service_table.h"
#include "supervisor/cli/session.h"
#include "supervisor/cli/table.h"

namespace baton {
namespace {

struct Target {
  std::string service;
  uint64_t worker_id = 0;
  bool yes = false;
  double wait_seconds = 10;
};

std::string FormatHealth(const v1::Worker& worker) {
  return absl::StrCat(worker.healthy() ? "ok" : "bad", worker.health_detail().empty() ? "" : ": ",
                      worker.health_detail());
}

absl::Status List(Session* session, const Target& target) {
  BATON_ASSIGN_OR_RETURN(OperatorClient * client, session->Connect());
  v1::ListWorkersRequest request;
  request.set_service(target.service);
  BATON_ASSIGN_OR_RETURN(const v1::ListWorkersResponse response, client->ListWorkers(request));
  if (session->json) {
    session->PrintJson(response);
    return absl::OkStatus();
  }
  std::vector<std::pair<std::string, v1::Worker>> workers;
  for (const auto& item : response.workers()) workers.emplace_back(item.service(), item.worker());
  if (workers.empty()) {
    session->err << "no workers are attached\n";
  } else {
    PrintWorkers(session->out, workers);
  }
  return absl::OkStatus();
}

absl::Status Describe(Session* session, const Target& target) {
  BATON_ASSIGN_OR_RETURN(OperatorClient * client, session->Connect());
  v1::GetWorkerRequest request;
  request.set_service(target.service);
  request.set_worker_id(target.worker_id);
  BATON_ASSIGN_OR_RETURN(const v1::GetWorkerResponse response, client->GetWorker(request));
  if (session->json) {
    session->PrintJson(response);
    return absl::OkStatus();
  }
  const v1::Worker& worker = response.worker();
  const bool owner = worker.shards_size() > 0;
  PrintFields(
      session->out,
      {{"Worker", absl::StrCat(worker.id(), " of service ", target.service)},
       {"Name", worker.name()},
       {"Version", worker.version()},
       {"State", FormatState(worker.state())},
       {"Process", absl::StrCat("pid ", worker.pid(), ", uid ", worker.uid())},
       {"Attached", absl::StrCat(FormatDuration(worker.attached_seconds()), " ago")},
       {"Shards", absl::StrJoin(worker.shards(), ", ")},
       {"Heartbeats", absl::StrCat(worker.heartbeats())},
       {"Last heartbeat",
        owner ? absl::StrCat(FormatDuration(worker.seconds_since_heartbeat()), " ago") : ""},
       {"State versions",
        absl::StrCat("reads ", worker.reads_state_version_min(), " to ",
                     worker.reads_state_version_max(), ", writes ", worker.writes_state_version())},
       {"Control stream", worker.control_stream() ? "open" : "none"},
       {"Health", FormatHealth(worker)}});
  return absl::OkStatus();
}

bool Confirmed(Session* session, const Target& target, const char* what) {
  if (target.yes) return true;
  if (!session->interactive) return false;
  session->err << what << " worker " << target.worker_id << " of service " << target.service
               << "? Its shards go to another worker, if one is ready. [y/N] ";
  session->err.flush();
  std::string answer;
  std::getline(session->in, answer);
  return answer == "y" || answer == "yes";
}

absl::Status Stop(Session* session, const Target& target) {
  if (!Confirmed(session, target, "Stop")) {
    return absl::InvalidArgumentError("not confirmed, nothing was stopped: add --yes");
  }
  BATON_ASSIGN_OR_RETURN(OperatorClient * client, session->Connect());
  v1::StopWorkerRequest request;
  request.set_service(target.service);
  request.set_worker_id(target.worker_id);
  request.set_timeout_ms(static_cast<uint32_t>(target.wait_seconds * 1000));
  BATON_ASSIGN_OR_RETURN(
      const v1::StopWorkerResponse response,
      client->StopWorker(request, target.wait_seconds + session->timeout_seconds));
  if (session->json) {
    session->PrintJson(response);
  } else {
    session->err << "worker " << target.worker_id << " of service " << target.service
                 << " has ended\n";
  }
  return absl::OkStatus();
}

absl::Status Kill(Session* session, const Target& target) {
  if (!Confirmed(session, target, "Kill")) {
    return absl::InvalidArgumentError("not confirmed, nothing was killed: add --yes");
  }
  BATON_ASSIGN_OR_RETURN(OperatorClient * client, session->Connect());
  v1::KillWorkerRequest request;
  request.set_service(target.service);
  request.set_worker_id(target.worker_id);
  BATON_ASSIGN_OR_RETURN(const v1::KillWorkerResponse response, client->KillWorker(request));
  if (session->json) {
    session->PrintJson(response);
  } else {
    session->err << "worker " << target.worker_id << " of service " << target.service
                 << " was sent SIGKILL\n";
  }
  return absl::OkStatus();
}

}  // namespace

void AddWorkerCommands(CLI::App* app, Session* session) {
  CLI::App* noun = app->add_subcommand("worker", "Workers: processes attached to a service");
  noun->require_subcommand(1);
  noun->fallthrough();
  auto target = std::make_shared<Target>();
  const auto add = [&](const char* verb, const char* text, bool one, auto run) {
    CLI::App* command = noun->add_subcommand(verb, text);
    auto* service = command->add_option("service", target->service, "its service");
    if (one) {
      service->required();
      command->add_option("id", target->worker_id, "its number, as listed")->required();
    }
    command->callback([session, target, run] {
      session->action = [session, target, run] { return run(session, *target); };
    });
    return command;
  };
  add("list", "List the workers of one service or of all", false, List);
  add("describe", "Show a worker", true, Describe);
  CLI::App* stop =
      add("stop", "Ask a worker to release its shards and end, and wait until it has", true, Stop);
  stop->add_flag("--yes", target->yes, "do not ask");
  stop->add_option("--wait-timeout", target->wait_seconds, "seconds that it has to end")
      ->type_name("S")
      ->check(CLI::Range(0.001, 600.0))
      ->capture_default_str();
  add("kill", "Kill a worker's process with SIGKILL", true, Kill)
      ->add_flag("--yes", target->yes, "do not ask");
}

}  // namespace baton
