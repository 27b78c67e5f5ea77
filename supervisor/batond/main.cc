// batond: see supervisor.h. Exit codes: 0: it was told to stop; 1: it could not run; 2: the command
// line or the configuration is wrong.
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/log/log.h"
#include "lib/log/standard_error.h"
#include "spdlog/spdlog.h"
#include "supervisor/batond/audit_directory.h"
#include "supervisor/batond/options.h"
#include "supervisor/batond/own_program.h"
#include "supervisor/batond/state_directory.h"
#include "supervisor/batond/supervisor.h"
#include "supervisor/config/log_level.h"
#include "supervisor/config/network_namespace.h"

namespace baton {
namespace {

constexpr size_t kMaxMessageBytes = 3072;

// Children inherit it: a driver, or its NIC on the soft device, needs some descriptors for each
// connection.
void RaiseDescriptorLimit() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  const rlim_t before = std::exchange(limit.rlim_cur, limit.rlim_max);
  if (setrlimit(RLIMIT_NOFILE, &limit) == 0) {
    spdlog::info("RLIMIT_NOFILE raised from {} to its hard limit {}", before, limit.rlim_max);
  } else {
    spdlog::warn("RLIMIT_NOFILE stays at {}: it could not be raised to {}", before, limit.rlim_max);
  }
}

// Checks what each driver would check, in one message for all services and before any driver is
// started.
absl::Status CheckNetworkNamespaces(const v1::Config& config) {
  std::string problems;
  for (const v1::ServiceConfig& service : config.services()) {
    if (service.network_namespace().empty()) continue;
    const auto file = OpenNetworkNamespace(service.network_namespace());
    if (file.ok()) continue;
    absl::StrAppend(&problems, problems.empty() ? "" : "\nbatond: ", "service ", service.name(),
                    ": ",
                    NetworkNamespaceError(service.network_namespace(), file.status()).message());
  }
  return problems.empty() ? absl::OkStatus() : absl::FailedPreconditionError(problems);
}

int Fail(const absl::Status& status) {
  if (log::IsJson()) {
    spdlog::error("{}", std::string(status.message()));
    return 1;
  }
  (void)log::PatientWriter(STDERR_FILENO)
      .Write(absl::StrCat("batond: ", status.message()).substr(0, kMaxMessageBytes) + "\n");
  return 1;
}

int Run(int argc, char** argv, OwnProgram* own) {
  std::variant<CommandLine, int> parsed = ParseCommandLine(argc, argv, *own);
  if (const int* exit_code = std::get_if<int>(&parsed)) return *exit_code;
  CommandLine& line = std::get<CommandLine>(parsed);
  if (line.check_only) {
    std::printf("the configuration is valid\n");
    return 0;
  }
  // Logs without a thread, so that the main thread forks: children's parent death signals depend on
  // the thread that forked.
  log::LogToStandardError("batond", log::LogThread::kNone,
                          "%Y-%m-%dT%H:%M:%S.%e batond[%P] %l: %v");
  const v1::Config& config = line.options.config;
  spdlog::default_logger()->set_level(LevelOf(config.log_level()));
  if (config.log_format() == v1::JSON) log::UseJson("batond", "");
  RaiseDescriptorLimit();
  if (line.options.strict) {
    if (const absl::Status status = CheckNetworkNamespaces(config); !status.ok()) {
      return Fail(status);
    }
  }
  const absl::StatusOr<StateDirectory> state =
      StateDirectory::Open(config.state_dir(), ServiceNames(config),
                           ServesOthers(config) || line.options.control_user.has_value());
  if (!state.ok()) return Fail(state.status());
  line.options.audit_directory = MakeAuditDirectory(config.state_dir(), line.options.control_user);
  own->GoBackIfTrialDied(config.state_dir());
  line.options.own = own;
  Supervisor supervisor(std::move(line.options), *state);
  absl::Status status = supervisor.Run();
  if (supervisor.is_replaced() || own->on_trial()) supervisor.LeaveToProgram();
  if (supervisor.is_replaced()) status = own->Replace();
  if (status.ok()) return 0;
  const int result = Fail(status);
  if (own->on_trial()) own->GoBack(std::string(status.message()));
  return result;
}

}  // namespace
}  // namespace baton

int main(int argc, char** argv) {
  prctl(PR_SET_NAME, "batond");  // a program run by a descriptor is named by its number
  baton::OwnProgram own(argc, argv);
  const int result = baton::Run(argc, argv, &own);
  if (result != 0 && own.on_trial()) own.GoBack("it could not serve: its messages above tell why");
  own.EndTrial();
  return result;
}
