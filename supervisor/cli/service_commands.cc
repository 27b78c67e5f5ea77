#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "google/protobuf/text_format.h"
#include "lib/base/status.h"
#include "lib/base/version.h"
#include "supervisor/cli/choose.h"
#include "supervisor/cli/command_options.h"
#include "supervisor/cli/commands.h"
#include "supervisor/cli/format.h"
#include "supervisor/cli/invocation.h"
#include "supervisor/cli/service_table.h"
#include "supervisor/config/policy.h"
#include "supervisor/config/state_files.h"

namespace baton {
namespace new_service {

// The files of worker/kit/template, in which @NAME@ stands for the name of the new service. The
// rule `new_service` of BUILD.bazel generates the source of these arrays, and names each `k_` and
// the file's name.
extern const char k_CMakeLists[];    // CMakeLists.txt
extern const char k_service[];       // @NAME@.cpp
extern const char k_service_test[];  // @NAME@_test.cpp

}  // namespace new_service

namespace {

constexpr char kPolicyFooter[] =
    "Shows the policy as text that --set takes. A new one is in force at once and takes the place "
    "of "
    "the whole; what there is too much of by then stays, and nothing is added to it. When the "
    "driver starts anew, the configuration's is in force again.";
constexpr char kStandardInput[] = "-";

struct PolicyOptions {
  std::string service;
  std::string file;  // of the new one; empty: none
  Change change;
};

void PrintPolicy(Invocation* invocation, const std::string& service, const v1::Policy& policy) {
  std::string text;
  google::protobuf::TextFormat::PrintToString(policy, &text);
  invocation->out << "# policy of service " << service
                  << (text.empty() ? ": none, everything up to its capacity" : "") << '\n'
                  << text;
}

absl::Status ShowPolicy(Invocation* invocation, PolicyOptions options) {
  BATON_RETURN_IF_ERROR(ChooseService(invocation, Purpose::kLook, &options.service));
  BATON_ASSIGN_OR_RETURN(const v1::GetServiceResponse response,
                         invocation->AskService(options.service));
  if (invocation->json) return invocation->PrintJson(response.service().policy());
  PrintPolicy(invocation, options.service, response.service().policy());
  return absl::OkStatus();
}

absl::StatusOr<v1::Policy> ReadPolicy(Invocation* invocation, const std::string& file) {
  if (file != kStandardInput) return LoadPolicy(file);
  const std::string text(std::istreambuf_iterator<char>(invocation->in), {});
  return ParsePolicy(text, "standard input");
}

absl::Status ReplacePolicy(Invocation* invocation, PolicyOptions options) {
  BATON_RETURN_IF_ERROR(ChooseService(invocation, Purpose::kChange, &options.service));
  auto request = About<v1::SetPolicyRequest>(options.service);
  BATON_ASSIGN_OR_RETURN(*request.mutable_policy(), ReadPolicy(invocation, options.file));
  request.set_validate_only(options.change.dry_run);
  BATON_ASSIGN_OR_RETURN(const v1::SetPolicyResponse response,
                         invocation->Ask(&Operator::SetPolicy, request));
  if (options.change.dry_run) {
    return PrintPlan(invocation,
                     absl::StrCat("service ", options.service, " would have this policy"), request);
  }
  if (invocation->json) return invocation->PrintJson(response);
  PrintPolicy(invocation, options.service, response.policy());
  return absl::OkStatus();
}

void AddPolicyCommand(CLI::App* noun, Invocation* invocation) {
  CLI::App* command =
      noun->add_subcommand("policy", "Show a service's policy and quotas, or replace them");
  auto options = std::make_shared<PolicyOptions>();
  command->add_option("service", options->service, kItsService);
  CLI::Option* set =
      command
          ->add_option("--set", options->file, "replace it by this one, in text format; -: stdin")
          ->type_name("FILE");
  AddChangeOptions(command, &options->change, /*asks=*/false, invocation);
  command->get_option("--dry-run")->needs(set);
  command->footer(kPolicyFooter);
  OnChosen(command, invocation, options, [](Invocation* asking, const PolicyOptions& chosen) {
    return chosen.file.empty() ? ShowPolicy(asking, chosen) : ReplacePolicy(asking, chosen);
  });
}

struct ServiceFilter {
  std::vector<std::string> services;  // empty: all
  std::string state;
};

absl::Status CheckNames(const ServiceFilter& filter, const v1::ListServicesResponse& all) {
  for (const std::string& name : filter.services) {
    if (!absl::c_linear_search(NamesOf(all), name)) return NoService(name, all);
  }
  return absl::OkStatus();
}

absl::Status ListServices(Invocation* invocation, const ServiceFilter& filter) {
  BATON_ASSIGN_OR_RETURN(v1::ListServicesResponse response, invocation->AskServices());
  BATON_RETURN_IF_ERROR(CheckNames(filter, response));
  const bool none = response.services().empty();
  KeepIf(response.mutable_services(), [&](const v1::Service& service) {
    return (filter.state.empty() || StateOf(service) == filter.state) &&
           (filter.services.empty() || absl::c_linear_search(filter.services, service.name()));
  });
  SortBy(response.mutable_services(), [](const v1::Service& service) { return service.name(); });
  if (invocation->json) return invocation->PrintJson(response);
  PrintServices(invocation->out, response.services(), invocation->style);
  invocation->PrintNext(NextForServices(response.services()));
  if (none) invocation->err << "no services are configured\n";
  return absl::OkStatus();
}

std::string FormatUpgrade(const v1::Service& service) {
  if (!service.has_upgrade()) return "none under way";
  const v1::Upgrade& upgrade = service.upgrade();
  return absl::StrCat(upgrade.id(), upgrade.rollback() ? ", back, " : ", ", FormatVersions(upgrade),
                      ", ", FormatProgress(upgrade));
}

std::string FormatDrain(const v1::Service& service) {
  if (!service.has_drain()) return "taken";
  const v1::Drain& drain = service.drain();
  return absl::StrCat("refused (", drain.refused(), " since ",
                      FormatTime(drain.started_unix_micros()), ")",
                      drain.deadline_unix_micros() == 0
                          ? ""
                          : absl::StrCat("; deadline ", FormatTime(drain.deadline_unix_micros())));
}

std::string FormatNetwork(const v1::Service& service) {
  std::string listeners = FormatListeners(service, ", ");
  if (service.network_namespace().empty()) return listeners;
  return absl::StrCat(listeners.empty() ? "none" : listeners, " in network namespace ",
                      service.network_namespace());
}

std::string FormatMemory(const v1::Service& service) {
  const std::string bytes =
      FormatBuffers(service.buffer_bytes(), service.shard_count(), service.shard_heap_bytes());
  if (!service.has_buffer_pages()) return bytes;
  const v1::BufferPages& pages = service.buffer_pages();
  const std::string asked = absl::StrCat("huge pages of ", FormatBytes(pages.asked_bytes()));
  if (pages.page_bytes() != 0) return absl::StrCat(bytes, " on ", asked);
  return absl::StrCat(bytes, " on ordinary pages, not on ", asked, ": ", pages.why_not());
}

std::string FormatObjects(const v1::Accounts& accounts) {
  return absl::StrCat(accounts.queue_pairs(), " QPs, ", accounts.completion_queues(), " CQs, ",
                      accounts.shared_receive_queues(), " SRQs, ", accounts.memory_regions(),
                      " MRs of ", FormatBytes(accounts.registered_bytes()));
}

std::string FormatGrants(const v1::Accounts& accounts) {
  return absl::StrCat(accounts.grants(), " of ", FormatBytes(accounts.granted_bytes()));
}

std::string FormatProcess(int32_t pid, double uptime_seconds, const std::string& release) {
  return absl::StrCat("pid ", pid, ", up ", FormatDuration(uptime_seconds),
                      release.empty() ? "" : ", release ", release);
}

std::string FormatKeeper(const v1::Service& service) {
  const std::string& given_up = service.keeper_program_given_up();
  return absl::StrCat(
      FormatProcess(service.keeper_pid(), service.uptime_seconds(), service.keeper_release()),
      given_up.empty() ? "" : "; ", given_up);
}

// Formats the driver, and its twin: without one, connections end with this process.
std::string FormatDriver(const v1::Service& service) {
  // A keeper of the release before does not report it.
  if (service.driver_pid() == 0) return "";
  if (service.driver_pid() == service.keeper_pid()) return "its keeper";
  return absl::StrCat(FormatProcess(service.driver_pid(), service.driver_uptime_seconds(),
                                    service.driver_release()),
                      service.driver_twin_pid() == 0
                          ? ""
                          : absl::StrCat("; its twin pid ", service.driver_twin_pid()));
}

// Formats who drives the queues, and who waits to do so. Empty where the driver or workers do.
std::string FormatBroker(const v1::Service& service) {
  if (service.broker_pid() == 0) return "";
  const std::string& release = service.driver_code_release();
  const std::string& given_up = service.driver_code_given_up();
  return absl::StrCat("pid ", service.broker_pid(), release.empty() ? "" : ", release ", release,
                      service.twin_pid() == 0 ? ", without a twin at this moment"
                                              : absl::StrCat("; its twin pid ", service.twin_pid()),
                      given_up.empty() ? "" : "; ", given_up);
}

void PrintService(std::ostream& out, const v1::Service& service, const TableStyle& style) {
  constexpr ptrdiff_t kBehindDriver = 4;
  std::vector<std::pair<std::string, std::string>> fields = {
      {"Service", service.name()},
      {"Device", FormatDevice(service)},
      {"Keeper", FormatKeeper(service)},
      {"Driver", FormatDriver(service)},
      {"Version", FormatVersion(service.version())},
      {"Worker socket", service.worker_socket()},
      {"Listeners", FormatNetwork(service)},
      {"Shards owned", absl::StrCat(service.shards_owned(), " of ", service.shard_count())},
      {"Workers ready", absl::StrCat(service.ready_workers(), " of ", service.worker_count())},
      {"Upgrade", FormatUpgrade(service)},
      {"New connections", FormatDrain(service)},
      {"Connections", absl::StrCat(service.connection_count(), " of ", service.max_connections())},
      {"Buffers", FormatMemory(service)},
      {"Device objects", service.has_accounts() ? FormatObjects(service.accounts()) : ""},
      {"Grants", service.has_accounts() ? FormatGrants(service.accounts()) : ""}};
  if (const std::string broker = FormatBroker(service); !broker.empty()) {
    fields.insert(fields.begin() + kBehindDriver, {"Broker", broker});
  }
  for (const v1::CausedBlackout& one : service.blackouts()) {
    fields.emplace_back(absl::StrCat("Blackout, ", one.cause()), FormatBlackout(one.blackout()));
  }
  PrintFields(out, fields, style);
  if (service.accounts().warnings().empty()) return;
  out << "\nWarnings:\n";
  for (const std::string& warning : service.accounts().warnings()) {
    out << "  " << Printable(warning) << '\n';
  }
}

absl::Status DescribeService(Invocation* invocation, std::string name) {
  BATON_RETURN_IF_ERROR(ChooseService(invocation, Purpose::kLook, &name));
  BATON_ASSIGN_OR_RETURN(const v1::GetServiceResponse response, invocation->AskService(name));
  if (invocation->json) return invocation->PrintJson(response);
  PrintService(invocation->out, response.service(), invocation->style);
  invocation->out << "\nShards:\n";
  PrintShards(invocation->out, {response.shards().begin(), response.shards().end()},
              invocation->style);
  invocation->out << "\nWorkers:\n";
  std::vector<std::pair<std::string, v1::Worker>> workers;
  for (const v1::Worker& worker : response.workers()) workers.emplace_back(name, worker);
  PrintWorkers(invocation->out, workers, invocation->style);
  return absl::OkStatus();
}

// Has a reason if control, or batond, could not be replaced.
std::vector<std::pair<std::string, std::string>> FieldsOf(const v1::GetStatusResponse& status) {
  const std::string& control = status.control_program_given_up();
  const std::string& batond = status.batond_program_given_up();
  std::vector<std::pair<std::string, std::string>> fields = {
      {"Release", FormatVersion(status.version())},
      {"Control", absl::StrCat("pid ", status.control_pid(), ", up ",
                               FormatDuration(status.control_uptime_seconds()),
                               control.empty() ? "" : "; ", control)}};
  if (!batond.empty()) {
    fields.emplace_back("batond", absl::StrCat("release ", status.batond_release(), "; ", batond));
  }
  fields.emplace_back("Services", absl::StrCat(status.services_size()));
  return fields;
}

absl::Status Status(Invocation* invocation) {
  BATON_ASSIGN_OR_RETURN(v1::GetStatusResponse status, invocation->Ask(&Operator::GetStatus, {}));
  SortBy(status.mutable_services(), [](const v1::Service& service) { return service.name(); });
  if (invocation->json) return invocation->PrintJson(status);
  PrintFields(invocation->out, FieldsOf(status), invocation->style);
  if (status.services_size() > 0) invocation->out << '\n';
  PrintServices(invocation->out, status.services(), invocation->style);
  invocation->PrintNext(NextForServices(status.services()));
  return absl::OkStatus();
}

// Prints the client's own version even if Baton cannot be reached.
absl::Status Version(Invocation* invocation) {
  const absl::StatusOr<v1::GetStatusResponse> answer = invocation->Ask(&Operator::GetStatus, {});
  const absl::Status& problem = answer.status();
  if (invocation->json) {
    nlohmann::ordered_json json = {{"client_release", kRelease}, {"server", nullptr}};
    if (problem.ok()) json["server"] = nlohmann::ordered_json::parse(ToJson(answer->version()));
    invocation->out << json.dump() << '\n';
    return problem;
  }
  PrintFields(invocation->out,
              {{"Client", kRelease},
               {"!Server", problem.ok() ? FormatVersion(answer->version()) : "unreachable"}},
              invocation->style);
  return problem;
}

// ---------------------------------------------------------------- new service

struct NewService {
  std::string name;
  std::string directory;  // empty: one of that name
};

constexpr size_t kLongestName = 32;
constexpr char kLetters[] = "abcdefghijklmnopqrstuvwxyz0123456789-";
// Targets that CMake has already.
constexpr const char* kTargets[] = {"all",     "clean",      "help", "install",
                                    "package", "preinstall", "test"};

// It becomes the name of a service, of files and of CMake's targets.
absl::Status CheckNewName(const std::string& name) {
  const bool fits = !name.empty() && name.size() <= kLongestName && absl::ascii_islower(name[0]) &&
                    name.find_first_not_of(kLetters) == std::string::npos;
  if (!fits) {
    return absl::InvalidArgumentError(absl::StrCat(
        "\"", name,
        "\" cannot be the name of a service: it has to begin with a small letter, have at ",
        "most ", kLongestName, " characters, and only small letters, digits and -"));
  }
  if (IsReservedServiceName(name) || absl::c_linear_search(kTargets, name)) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", name, "\" is taken by Baton or CMake: choose another name"));
  }
  return absl::OkStatus();
}

// Makes the directory, or takes an empty one.
absl::Status MakeDirectory(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) return ErrnoStatus(error.value(), absl::StrCat("cannot make the directory ", path));
  if (std::filesystem::is_empty(path, error)) return absl::OkStatus();
  return absl::AlreadyExistsError(absl::StrCat(path, " is not empty: name another --directory"));
}

absl::Status Write(const std::string& path, const char* text, const std::string& name) {
  std::ofstream file(path);
  file << absl::StrReplaceAll(text, {{"@NAME@", name}});
  file.close();
  if (!file) return ErrnoStatus(errno, absl::StrCat("cannot write ", path));
  return absl::OkStatus();
}

// Returns the word for a shell, which takes it as it is.
std::string ShellQuoted(const std::string& word) {
  return absl::StrCat("'", absl::StrReplaceAll(word, {{"'", "'\\''"}}), "'");
}

absl::Status WriteService(Invocation* invocation, const NewService& flags) {
  BATON_RETURN_IF_ERROR(CheckNewName(flags.name));
  const std::string directory = flags.directory.empty() ? flags.name : flags.directory;
  BATON_RETURN_IF_ERROR(MakeDirectory(directory));
  const std::pair<std::string, const char*> files[] = {
      {"CMakeLists.txt", new_service::k_CMakeLists},
      {flags.name + ".cpp", new_service::k_service},
      {flags.name + "_test.cpp", new_service::k_service_test}};
  std::vector<std::string> written;
  for (const auto& [file, text] : files) {
    written.push_back(std::filesystem::path(directory) / file);
    BATON_RETURN_IF_ERROR(Write(written.back(), text, flags.name));
  }
  if (invocation->json) {
    invocation->out << nlohmann::json{{"files", written}}.dump(
                           2, ' ', false, nlohmann::json::error_handler_t::replace)
                    << '\n';
  } else {
    invocation->out << absl::StrJoin(written, "\n") << '\n';
  }
  invocation->PrintNext(absl::StrCat("cd ", ShellQuoted(directory),
                                     " && cmake -B build && cmake --build build && "
                                     "ctest --test-dir build --output-on-failure"));
  return absl::OkStatus();
}

}  // namespace

void AddServiceCommands(CLI::App* app, Invocation* invocation) {
  CLI::App* noun = AddNoun(app, "service", "Services: what is upgraded as one");
  CLI::App* list = noun->add_subcommand("list", "List the services");
  auto filter = std::make_shared<ServiceFilter>();
  list->add_option("--service", filter->services, "only this one; repeat for more")
      ->type_name("SERVICE")
      ->allow_extra_args(false);
  AddChoice(list, "--state", &filter->state, {"ok", "drained", "waiting", "unreachable"},
            "only those in this state");
  AddListingOptions(list, invocation);
  OnChosen(list, invocation, filter, ListServices);
  CLI::App* describe = noun->add_subcommand("describe", "Show a service, its shards and workers");
  auto name = std::make_shared<std::string>();
  describe->add_option("service", *name, kItsService);
  AddWatchOption(describe, invocation);
  OnChosen(describe, invocation, name, DescribeService);
  AddPolicyCommand(noun, invocation);
}

void AddStatusCommands(CLI::App* app, Invocation* invocation) {
  CLI::App* status = app->add_subcommand("status", "Show Baton and its services");
  AddListingOptions(status, invocation);
  status->callback(
      [invocation] { invocation->action = [invocation] { return Status(invocation); }; });
  app->add_subcommand("version", "Show the release of this program and of batond")
      ->callback(
          [invocation] { invocation->action = [invocation] { return Version(invocation); }; });
}

void AddNewCommand(CLI::App* app, Invocation* invocation) {
  CLI::App* noun = AddNoun(app, "new", "Begin a service");
  CLI::App* service =
      noun->add_subcommand("service", "Write a small service, and a test that kills it");
  service->footer(
      "Writes CMakeLists.txt, NAME.cpp and NAME_test.cpp: a service that adds up what its peers "
      "send, and a test that kills it at each commit and at random, and hands its connections to "
      "a new process. They need the packages libbaton-dev, libbaton-testing and libgtest-dev, and "
      "CMake. Needs no batond.");
  auto flags = std::make_shared<NewService>();
  service->add_option("name", flags->name, "of the service and of its files")
      ->type_name("NAME")
      ->required();
  service->add_option("--directory", flags->directory, "for the files; new or empty [NAME]")
      ->type_name("DIR");
  OnChosen(service, invocation, flags, WriteService);
}

}  // namespace baton
