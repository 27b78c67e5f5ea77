// batond: see supervisor.h. Exit codes: 0: it was told to stop; 1: it could not run; 2: the command
// line or the configuration is wrong.
#include <pwd.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "google/protobuf/message.h"
#include "lib/base/status.h"
#include "lib/base/version.h"
#include "lib/log/log.h"
#include "lib/log/standard_error.h"
#include "lib/text/text.h"
#include "spdlog/spdlog.h"
#include "supervisor/batond/own_program.h"
#include "supervisor/batond/state_directory.h"
#include "supervisor/batond/supervisor.h"
#include "supervisor/config/config.h"
#include "supervisor/config/log_level.h"
#include "supervisor/config/network_namespace.h"
#include "supervisor/config/state_files.h"

namespace baton {

struct CommandLine {
  SupervisorOptions options;
  bool check_only = false;
};

// Returns complete options, or the code to exit with at once, after it has printed help, the
// version or a problem.
std::variant<CommandLine, int> ParseCommandLine(int argc, char** argv, const OwnProgram& own);

namespace {

constexpr int kExitUsage = 2;

// Flags as they were given. The configuration's own code sets defaults and makes checks.
struct Flags {
  std::string config_file;
  bool dev = false;
  std::string state_dir;
  std::string metrics_address;
  v1::LogFormat log_format = v1::TEXT;
  v1::LogLevel log_level = v1::LOG_LEVEL_DEFAULT;
  std::string libexec;
  double start_timeout_seconds = 30;
  double stop_timeout_seconds = 5;
  double hang_timeout_seconds = 10;
  bool keep_services = false;
  bool strict = false;
  std::string control_user;
  std::string nic_user;
  std::string broker_user;
  bool check_only = false;
  v1::ServiceConfig service;  // what all services have
  std::vector<std::string> service_names = {"ledger"};
  std::vector<std::string> listeners;
  std::string device = "soft";
  std::optional<uint32_t> gid_index;
  std::string faults;
};

absl::Status ParseDevice(const Flags& flags, v1::Device* device) {
  constexpr std::string_view kRdmaPrefix = "rdma:";
  const std::string& text = flags.device;
  if (text == "soft") {
    if (flags.gid_index) {
      return absl::InvalidArgumentError("--gid-index: the soft device has no GIDs");
    }
    v1::SoftDeviceConfig& soft = *device->mutable_soft();
    if (flags.faults.empty()) return absl::OkStatus();
    return ParseText(flags.faults, "--faults", soft.mutable_faults());
  }
  if (text != "rdma" && !text.starts_with(kRdmaPrefix)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--device ", text, ": use soft, rdma, or rdma:NAME"));
  }
  if (!flags.faults.empty()) {
    return absl::InvalidArgumentError("--faults: only the soft device injects faults");
  }
  device->mutable_rdma();
  if (text != "rdma") device->mutable_rdma()->set_device(text.substr(kRdmaPrefix.size()));
  if (flags.gid_index) device->mutable_rdma()->set_gid_index(*flags.gid_index);
  return absl::OkStatus();
}

CLI::Option* OnlyWithDev(CLI::Option* option) {
  return option->needs("--dev")->group("With --dev");
}

uint32_t Narrow(uint64_t value) {
  return static_cast<uint32_t>(std::min<uint64_t>(value, UINT32_MAX));
}

// Numbers of a service: fields of ServiceConfig.
struct Number {
  const char* field;
  const char* help;
};
constexpr Number kNumbers[] = {
    {"shards", "Shards [1]"},
    {"max_connections", "Connections [64]"},
    {"send_queue_depth", "Sends outstanding per connection [64]"},
    {"receive_queue_depth", "Receives outstanding per connection [64]"},
    {"shared_receive_queue_depth",
     "Receives outstanding per shard, shared by its connections [0: each has its own]"},
    {"connection_state_bytes", "State per connection [256]"},
    {"shard_state_bytes", "State per shard [4096]"},
    {"buffer_bytes", "Registered memory [16777216]"},
    {"shard_heap_bytes", "Registered memory that each shard allocates from [0]"},
    {"max_workers", "Workers attached at once [16]"},
    {"handoff_timeout_ms", "How long an owner may take to release [5000]"},
    {"heartbeat_ms", "How often workers show that they live [1000]"},
    {"hang_timeout_ms", "An owner silent for so long is killed [5000]"},
    {"poison_deaths", "Deaths on a completion that fail its connection [3]"},
    {"max_inline_bytes", "Longest send that is handed to the device inline [0]"},
    {"ready_timeout_ms",
     "How long an upgrade's program may take to be ready [30000, and 4000 per GiB]"},
    {"watch_window_ms", "How long an upgrade is watched before it stays [30000]"},
    {"stop_timeout_ms", "A worker asked to end is killed after so long [10000]"},
    {"yield_microseconds", "How long processes of the service yield before they sleep [100]"},
    {"realtime_priority", "Of the threads that drive queues and notice deaths [0]"},
};

void AddNumber(CLI::App& app, const Number& number, v1::ServiceConfig& service) {
  using google::protobuf::FieldDescriptor;
  const FieldDescriptor* field = v1::ServiceConfig::descriptor()->FindFieldByName(number.field);
  const auto set = [&service, field](uint64_t value) {
    const google::protobuf::Reflection& fields = *v1::ServiceConfig::GetReflection();
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_UINT64) {
      fields.SetUInt64(&service, field, value);
    } else {
      fields.SetUInt32(&service, field, Narrow(value));
    }
  };
  const std::string flag = absl::StrReplaceAll(absl::StrCat("--", number.field), {{"_", "-"}});
  OnlyWithDev(app.add_option_function<uint64_t>(flag, set, number.help));
}

// Adds flags for native workers and for the device.
void AddNativeFlags(CLI::App& app, Flags& flags) {
  v1::ServiceConfig& service = flags.service;
  OnlyWithDev(app.add_option_function<std::string>(
      "--native",
      [&](const std::string& object) {
        service.set_mode(v1::NATIVE);
        service.mutable_native()->set_object(object);
      },
      "Shared object of native workers, an absolute path [workers are brokered]"));
  app.add_option_function<std::vector<std::string>>(
         "--native-argument",
         [&](const std::vector<std::string>& arguments) {
           for (const std::string& one : arguments) service.mutable_native()->add_arguments(one);
         },
         "Argument of their main; may be repeated")
      ->needs("--native")
      ->group("With --dev");
  OnlyWithDev(app.add_option_function<uint64_t>(
      "--native-workers", [&](uint64_t n) { service.mutable_native()->set_workers(Narrow(n)); },
      "Native workers that are kept running [2]"));
  OnlyWithDev(app.add_option("--device", flags.device,
                             "soft, rdma (the only one there is) or rdma:NAME [soft]"));
  OnlyWithDev(app.add_option_function<uint64_t>(
      "--gid-index", [&](uint64_t n) { flags.gid_index = Narrow(n); },
      "GID that connections of an rdma device use [their address's]"));
  OnlyWithDev(app.add_option_function<std::string>(
      "--network-namespace", [&](const std::string& name) { service.set_network_namespace(name); },
      "Name or path of that of the service's listeners and connections [batond's]"));
  OnlyWithDev(
      app.add_option("--faults", flags.faults,
                     "FaultPlan that the soft device injects, in protobuf text format [none]"));
}

void AddServiceFlags(CLI::App& app, Flags& flags) {
  v1::ServiceConfig& service = flags.service;
  OnlyWithDev(
      app.add_option("--service", flags.service_names,
                     "Name of a service; repeat for more, which have the same options [ledger]"))
      ->allow_extra_args(false);
  for (const Number& number : kNumbers) AddNumber(app, number, service);
  app.add_flag_callback(
      "--outside-effects", [&] { service.set_outside_effects(true); },
      "A successor starts only when the whole former process is gone");
  app.add_flag_callback(
      "--no-broker-processes", [&] { service.set_broker_processes(false); },
      "The driver drives the queues, and connections end with it; else brokers do on the soft "
      "device");
  app.add_flag_callback(
      "--dump-buffers", [&] { service.set_dump_buffers(true); },
      "Core dumps have the buffers, which prolongs blackouts");
  OnlyWithDev(app.add_option_function<std::string>(
      "--state-decoder",
      [&](const std::string& path) { service.mutable_state_decoder()->set_program(path); },
      "Program that prints application state, an absolute path"));
  OnlyWithDev(
      app.add_option("--listen", flags.listeners, "HOST:PORT to listen on; may be repeated"));
  AddNativeFlags(app, flags);
}

void AddFlags(CLI::App& app, Flags& flags) {
  app.set_version_flag("--version", std::string("batond ") + kRelease);
  CLI::Option* config =
      app.add_option("--config", flags.config_file, "Configuration file (protobuf text format)");
  CLI::Option* dev = app.add_flag(
      "--dev", flags.dev,
      "No configuration: services as the options below say, on the soft device, a private "
      "directory");
  config->excludes(dev);
  OnlyWithDev(app.add_option("--state-dir", flags.state_dir,
                             "State directory [" + DefaultStateDir() + "]"));
  OnlyWithDev(app.add_option("--metrics-address", flags.metrics_address,
                             "ADDRESS:PORT where Prometheus finds metrics [nowhere]"));
  OnlyWithDev(app.add_option_function<std::string>(
                  "--log-format",
                  [&](const std::string& format) {
                    flags.log_format = format == "json" ? v1::JSON : v1::TEXT;
                  },
                  "text, or json: one object a line [text]"))
      ->check(CLI::IsMember({"text", "json"}));
  OnlyWithDev(app.add_option_function<std::string>(
                  "--log-level",
                  [&](const std::string& level) {
                    (void)v1::LogLevel_Parse(
                        absl::StrCat("LOG_LEVEL_", absl::AsciiStrToUpper(level)), &flags.log_level);
                  },
                  "debug, info, warning or error [info]"))
      ->check(CLI::IsMember({"debug", "info", "warning", "error"}));
  app.add_option(
      "--libexec", flags.libexec,
      "Directory of baton-driver, baton-keeper, baton-control and others [that of batond]");
  app.add_option("--start-timeout", flags.start_timeout_seconds,
                 "Seconds until a child must be ready; services have 4 more per GiB of arena [30]")
      ->check(CLI::Range(0.01, 3600.0));
  app.add_option("--stop-timeout", flags.stop_timeout_seconds,
                 "Seconds until children that do not stop are killed [5]")
      ->check(CLI::Range(0.01, 3600.0));
  app.add_option(
         "--hang-timeout", flags.hang_timeout_seconds,
         "Seconds without a sign of life of a driver, keeper or control until it is reported, and "
         "control is killed and started again [10]. "
         "For workers see --hang-timeout-ms")
      ->check(CLI::Range(2.0, 3600.0));
  app.add_flag("--keep-services", flags.keep_services,
               "Leave services and control to the next batond when told to stop; they end when the "
               "service manager stops batond for good");
  app.add_flag("--strict", flags.strict,
               "End when a service or control does not start the first time, as with --dev; "
               "otherwise the others serve, and it is started again and again");
  app.add_option("--control-user", flags.control_user,
                 "User that control runs as, without capabilities; needs root [batond's]");
  app.add_option("--nic-user", flags.nic_user,
                 "User of the soft device's NICs (baton-nic), but of those whose service has a "
                 "native.uid that is not root's; needs root [batond's]");
  app.add_option("--broker-user", flags.broker_user,
                 "User of brokers, which drive the queues of brokered services; needs root "
                 "[batond's]");
  app.add_flag("--check", flags.check_only, "Only check the configuration");
  AddServiceFlags(app, flags);
}

absl::StatusOr<v1::Config> DevConfig(const Flags& flags) {
  v1::Config config;
  config.set_state_dir(flags.state_dir.empty() ? DefaultStateDir() : flags.state_dir);
  config.set_metrics_address(flags.metrics_address);
  config.set_log_format(flags.log_format);
  config.set_log_level(flags.log_level);
  v1::ServiceConfig service = flags.service;
  BATON_RETURN_IF_ERROR(ParseDevice(flags, service.mutable_device()));
  if (flags.service_names.size() > 1 && !flags.listeners.empty()) {
    return absl::InvalidArgumentError(
        "--listen: only one of several services could have that port; let their workers listen, or "
        "write a configuration (--config)");
  }
  for (const std::string& text : flags.listeners) {
    const std::optional<HostPort> parsed = ParseHostPort(text);
    if (!parsed) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--listen ", text, ": not HOST:PORT; for example 127.0.0.1:0 or [::1]:7471"));
    }
    v1::ListenerConfig& listener = *service.add_listeners();
    listener.set_host(parsed->host);
    listener.set_port(parsed->port);
  }
  if (service.mode() == v1::BROKERED) service.mutable_policy()->set_workers_may_take_over(true);
  for (const std::string& name : flags.service_names) {
    service.set_name(name);
    *config.add_services() = service;
  }
  absl::Status status = CompleteConfig(config);
  if (!status.ok()) return status;
  return config;
}

// Finds the user that `option` names. `what` describes the program that runs as that user.
absl::StatusOr<std::optional<ProgramUser>> FindUser(absl::string_view option,
                                                    const std::string& name,
                                                    absl::string_view what) {
  if (name.empty()) return std::nullopt;
  errno = 0;
  const passwd* user = getpwnam(name.c_str());
  if (user == nullptr) {
    return absl::NotFoundError(absl::StrCat(
        option, " ", name, ": there is no such user",
        errno == 0 ? "" : absl::StrCat(" (", strerrordesc_np(errno), ")"),
        "; make it (systemd-sysusers does, by Baton's sysusers.d file), or leave the option out"));
  }
  if (geteuid() != 0 && user->pw_uid != geteuid()) {
    return absl::PermissionDeniedError(absl::StrCat(option, " ", name,
                                                    ": only a batond of root's can run ", what,
                                                    " as somebody else; leave it out"));
  }
  if (geteuid() != 0) return std::nullopt;
  return ProgramUser{user->pw_uid, user->pw_gid};
}

std::chrono::milliseconds Milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

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
  const absl::StatusOr<StateDirectory> state = StateDirectory::Open(
      config.state_dir(), ServiceNames(config),
      ServesOthers(config) || line.options.control_user.has_value(),
      line.options.control_user ? std::optional(line.options.control_user->uid) : std::nullopt);
  if (!state.ok()) return Fail(state.status());
  line.options.audit_directory = MakeAuditDirectory(config.state_dir(), line.options.control_user);
  own->GoBackIfProbationFailed(config.state_dir());
  line.options.own = own;
  Supervisor supervisor(std::move(line.options), *state);
  absl::Status status = supervisor.Run();
  if (supervisor.is_replaced() || own->on_probation()) supervisor.LeaveToProgram();
  if (supervisor.is_replaced()) status = own->Replace();
  if (status.ok()) return 0;
  const int result = Fail(status);
  if (own->on_probation()) own->GoBack(std::string(status.message()));
  return result;
}

}  // namespace

std::variant<CommandLine, int> ParseCommandLine(int argc, char** argv, const OwnProgram& own) {
  CLI::App app("Keeps RDMA services' connections while their processes come and go.", "batond");
  Flags flags;
  AddFlags(app, flags);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kExitUsage;
  }
  if (!flags.dev && flags.config_file.empty()) {
    std::fprintf(stderr, "batond: give --config FILE, or --dev to run without one (see --help)\n");
    return kExitUsage;
  }
  absl::StatusOr<v1::Config> config = flags.dev ? DevConfig(flags) : LoadConfig(flags.config_file);
  if (!config.ok()) {
    std::fprintf(stderr, "%s\n", std::string(config.status().message()).c_str());
    return kExitUsage;
  }
  const auto control_user = FindUser("--control-user", flags.control_user, "control");
  const auto nic_user = FindUser("--nic-user", flags.nic_user, "NICs");
  const auto broker_user = FindUser("--broker-user", flags.broker_user, "brokers");
  for (const auto& user : {control_user, nic_user, broker_user}) {
    if (user.ok()) continue;
    std::fprintf(stderr, "batond: %s\n", std::string(user.status().message()).c_str());
    return kExitUsage;
  }
  CommandLine line;
  line.options.control_user = *control_user;
  line.options.nic_user = *nic_user;
  line.options.broker_user = *broker_user;
  if (!flags.dev) {
    line.options.read_config = [file = flags.config_file] { return LoadConfig(file); };
  }
  line.options.config = *std::move(config);
  line.options.libexec = flags.libexec.empty() ? own.directory() : flags.libexec;
  line.options.start_timeout = Milliseconds(flags.start_timeout_seconds);
  line.options.stop_timeout = Milliseconds(flags.stop_timeout_seconds);
  line.options.hang_timeout = Milliseconds(flags.hang_timeout_seconds);
  line.options.keep_services = flags.keep_services;
  line.options.strict = flags.strict || flags.dev;  // with --dev a person sees the failure
  line.check_only = flags.check_only;
  return line;
}

}  // namespace baton

int main(int argc, char** argv) {
  prctl(PR_SET_NAME, "batond");  // a program run by a descriptor is named by its number
  baton::OwnProgram own(argc, argv);
  const int result = baton::Run(argc, argv, &own);
  if (result != 0 && own.on_probation()) {
    own.GoBack("it could not serve: its messages above tell why");
  }
  own.EndProbation();
  return result;
}
