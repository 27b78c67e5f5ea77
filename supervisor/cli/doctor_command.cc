#include <algorithm>
#include <optional>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "lib/base/status.h"
#include "lib/base/version.h"
#include "supervisor/cli/command_options.h"
#include "supervisor/cli/commands.h"
#include "supervisor/cli/format.h"
#include "supervisor/cli/invocation.h"
#include "supervisor/config/config.h"
#include "supervisor/doctor/doctor.h"
#include "supervisor/doctor/this_machine.h"

namespace baton {
namespace {

constexpr size_t kSeverityWidth = 7;  // "PROBLEM", "WARNING"
constexpr char kGap[] = "  ";

// "SEVERITY_OK" as "OK".
std::string SeverityName(v1::Severity severity) {
  const std::string name = v1::Severity_Name(severity);
  return name.substr(name.find('_') + 1);
}

std::string Padded(std::string text, size_t width) {
  text.resize(std::max(width, text.size()), ' ');
  return text;
}

struct DoctorFlags {
  std::string config_file;
  std::string user;
};

// Short, because the doctor is run when batond does not answer.
constexpr double kDoctorPatienceSeconds = 2;

// Asks the running batond, if there is one, for the releases of its parts.
std::optional<doctor::RunningVersions> AskVersions(Invocation* invocation,
                                                   const doctor::Machine& machine,
                                                   const std::string& state_dir) {
  if (!doctor::RunningBatond(machine, state_dir)) return std::nullopt;
  invocation->state_dir = state_dir;
  invocation->timeout_seconds = std::min(invocation->timeout_seconds, kDoctorPatienceSeconds);
  doctor::RunningVersions versions;
  versions.own_release = kRelease;
  const auto ask = [&]() -> absl::Status {
    BATON_ASSIGN_OR_RETURN(const v1::GetStatusResponse status,
                           invocation->Ask(&Operator::GetStatus, {}));
    versions.control = status.version();
    for (const v1::Service& service : status.services()) {
      if (service.reachable()) versions.keepers[service.name()] = service.version();
    }
    BATON_ASSIGN_OR_RETURN(const v1::ListWorkersResponse workers,
                           invocation->Ask(&Operator::ListWorkers, {}));
    for (const v1::WorkerOfService& one : workers.workers()) {
      ++versions.workers[one.service()][one.worker().library_release()];
    }
    return absl::OkStatus();
  };
  versions.problem = std::string(ask().message());
  return versions;
}

// Asks a running batond for its versions, but does not need one.
absl::Status Doctor(Invocation* invocation, const DoctorFlags& flags) {
  doctor::Request request;
  request.state_dir = invocation->state_dir;
  request.config_file = flags.config_file;
  request.identity = invocation->console.identity != nullptr ? *invocation->console.identity
                                                             : doctor::OwnIdentity();
  if (!flags.user.empty()) {
    absl::StatusOr<doctor::Identity> identity = doctor::IdentityOf(flags.user);
    // An unknown user is bad usage, not something that batond did not find.
    if (!identity.ok()) return absl::InvalidArgumentError(identity.status().message());
    request.identity = *std::move(identity);
  }
  if (!flags.config_file.empty()) {
    absl::StatusOr<v1::Config> config = LoadConfig(flags.config_file);
    if (!config.ok()) return absl::InvalidArgumentError(config.status().message());
    request.config = *std::move(config);
  }
  const doctor::ThisMachine this_machine;
  const doctor::Machine* const machine = invocation->console.machine;
  const doctor::Machine& patient = machine != nullptr ? *machine : this_machine;
  request.running = AskVersions(invocation, patient, doctor::StateDirOf(request));
  const v1::DoctorReport report = Diagnose(patient, request);
  if (invocation->json) {
    invocation->PrintJson(report).IgnoreError();
  } else {
    PrintDoctorReport(invocation->out, report, invocation->style);
  }
  if (report.problems() == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(FormatCount(report.problems(), "problem"), " found"));
}

}  // namespace

void PrintDoctorReport(std::ostream& out, const v1::DoctorReport& report, const TableStyle& style) {
  size_t width = 0;
  for (const v1::Finding& finding : report.findings()) {
    width = std::max(width, finding.check().size());
  }
  const size_t column = kSeverityWidth + width + 2 * std::string(kGap).size();
  const std::string indent(column, ' ');
  const auto fitted = [&](const std::string& text, size_t from) {
    const std::string line = Printable(text);
    return style.columns == 0 ? line : Wrap(line, from, from, style.columns);
  };
  for (const v1::Finding& finding : report.findings()) {
    const std::string severity = SeverityName(finding.severity());
    const std::string padded = Padded(severity, kSeverityWidth);
    out << (style.colour ? Painted(padded, ColourOf(severity)) : padded) << kGap
        << Padded(finding.check(), width) << kGap
        << fitted(absl::StrCat(finding.subject(), finding.subject().empty() ? "" : ": ",
                               finding.message()),
                  column)
        << '\n';
    if (finding.severity() == v1::SEVERITY_OK) continue;
    out << indent << "so:   " << fitted(finding.consequence(), column + 6) << '\n';
    // Not wrapped, because it is there to be copied.
    out << indent << "cure: " << Printable(finding.cure()) << '\n';
  }
  const uint64_t fine =
      static_cast<uint64_t>(report.findings_size()) - report.problems() - report.warnings();
  out << '\n'
      << FormatCount(report.problems(), "problem") << ", "
      << FormatCount(report.warnings(), "warning") << ", " << fine << " ok\n";
}

void AddDoctorCommand(CLI::App* app, Invocation* invocation) {
  CLI::App* command =
      app->add_subcommand("doctor", "Check whether this machine has what Baton needs, with cures");
  command->footer(
      "Looks at kernel modules, RDMA devices, ports, addresses, permissions, limits, memory, the "
      "clock and, of a batond that runs, releases. Changes nothing. Exit code 0: no problem, "
      "warnings do not count; 1: problems found; 2: bad usage, or an invalid configuration.");
  auto flags = std::make_shared<DoctorFlags>();
  command
      ->add_option("--config", flags->config_file,
                   "also whether the services of this configuration fit on their devices")
      ->type_name("FILE");
  command->add_option("--user", flags->user, "who batond is going to run as [who runs this]")
      ->type_name("NAME");
  OnChosen(command, invocation, flags, Doctor);
}

}  // namespace baton
