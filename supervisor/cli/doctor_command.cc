#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "lib/base/status_macros.h"
#include "supervisor/cli/commands.h"
#include "supervisor/cli/doctor_report.h"
#include "supervisor/cli/session.h"
#include "supervisor/config/config.h"
#include "supervisor/doctor/doctor.h"
#include "supervisor/doctor/this_machine.h"

namespace baton {
namespace {

struct Flags {
  std::string config_file;
  std::string user;
};

// Says nothing to batond, which may not run.
absl::Status Doctor(Session* session, const Flags& flags) {
  doctor::Request request;
  request.state_dir = session->state_dir;
  request.config_file = flags.config_file;
  request.identity = doctor::OwnIdentity();
  if (!flags.user.empty()) {
    absl::StatusOr<doctor::Identity> identity = doctor::IdentityOf(flags.user);
    // A name that is none is bad usage, not something that batond did not find.
    if (!identity.ok()) return absl::InvalidArgumentError(identity.status().message());
    request.identity = *std::move(identity);
  }
  if (!flags.config_file.empty()) {
    absl::StatusOr<v1::Config> config = LoadConfig(flags.config_file);
    if (!config.ok()) return absl::InvalidArgumentError(config.status().message());
    request.config = *std::move(config);
  }
  const v1::DoctorReport report = Diagnose(doctor::ThisMachine(), request);
  if (session->json) {
    session->PrintJson(report);
  } else {
    PrintDoctorReport(session->out, report);
  }
  if (report.problems() == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(report.problems(), " problem", report.problems() == 1 ? "" : "s", " found"));
}

}  // namespace

void AddDoctorCommand(CLI::App* app, Session* session) {
  CLI::App* command = app->add_subcommand(
      "doctor",
      "Check whether this machine has what Baton needs: kernel modules, RDMA devices, their ports\n"
      "and addresses, permissions, limits; batond need not run. Changes nothing.");
  command->footer(
      "Exit codes: 0 no problem (warnings do not count), 1 problems found, 2 bad usage or an\n"
      "invalid configuration.");
  auto flags = std::make_shared<Flags>();
  command
      ->add_option("--config", flags->config_file,
                   "also whether the services of this configuration fit on their devices")
      ->type_name("FILE");
  command->add_option("--user", flags->user, "who batond is going to run as [who runs this]")
      ->type_name("NAME");
  command->callback(
      [session, flags] { session->action = [session, flags] { return Doctor(session, *flags); }; });
}

}  // namespace baton
