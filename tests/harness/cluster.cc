#include "tests/harness/cluster.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <fstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "lib/base/status.h"
#include "supervisor/config/state_files.h"
#include "tests/harness/file_content.h"
#include "tests/harness/wait_until.h"

namespace baton::harness {
namespace {

constexpr std::chrono::seconds kStart{30};
constexpr std::chrono::seconds kStop{30};
constexpr std::chrono::seconds kUpgrade{60};
// Between two looks at an upgrade: they take processor time from what is measured.
constexpr std::chrono::milliseconds kLook{10};
constexpr size_t kDumpedBytes = 8000;

// batond's own limits are for a machine that is not emulated, too.
void AddPatience(std::vector<std::string>* arguments) {
  if (Slowness() == 1) return;
  constexpr std::pair<const char*, int> kLimits[] = {
      {"--start-timeout", 30},     {"--stop-timeout", 5},          {"--handoff-timeout-ms", 5000},
      {"--hang-timeout-ms", 5000}, {"--ready-timeout-ms", 30'000}, {"--stop-timeout-ms", 10'000},
  };
  for (const auto& [name, limit] : kLimits) {
    if (std::count(arguments->begin(), arguments->end(), name) > 0) continue;
    arguments->insert(arguments->end(), {name, absl::StrCat(limit * Slowness())});
  }
}

// Asks until control takes it: it limits how many changes an operator asks for in a short time.
// Another answer is the caller's.
absl::Status WaitUntilTaken(const std::string& change, const std::function<absl::Status()>& ask,
                            std::chrono::milliseconds timeout = std::chrono::seconds(10)) {
  return WaitUntil(
      absl::StrCat(change, " to be taken"), [&] { return !absl::IsResourceExhausted(ask()); },
      timeout);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Cluster>> Cluster::Start(ClusterOptions options) {
  BATON_ASSIGN_OR_RETURN(TempDirectory directory, TempDirectory::Create());
  std::unique_ptr<Cluster> cluster(new Cluster(std::move(options), std::move(directory)));
  absl::Status status = cluster->StartBatond();
  if (!status.ok()) {
    cluster->DumpLogs();
    return status;
  }
  return cluster;
}

Cluster::~Cluster() { Stop().IgnoreError(); }  // a test that cares calls Stop itself

std::string Cluster::SocketPath() const {
  return absl::StrCat(directory(), "/state/", options_.service, ".sock");
}
std::string Cluster::OperatorSocketPath() const { return directory() + "/state/operator.sock"; }

std::string Cluster::NewLog(const std::string& program) {
  logs_.push_back(absl::StrCat(directory(), "/", logs_.size(), "-", program, ".log"));
  return logs_.back();
}

absl::Status Cluster::StartBatond() {
  ChildOptions child;
  BATON_ASSIGN_OR_RETURN(child.program, options_.binaries.Find("batond"));
  // batond takes its children from one directory; in a Bazel tree they lie in several.
  std::error_code error;
  std::filesystem::create_directory(libexec(), error);
  std::vector<std::pair<std::string, std::string>> children = {{"baton-driver", options_.driver},
                                                               {"baton-keeper", options_.keeper},
                                                               {"baton-control", "baton-control"}};
  // Driver and keeper look for these beside themselves.
  if (options_.own_programs) {
    for (const char* const helper : {"baton-nic", "baton-launch", "libbaton-driver.so"}) {
      children.emplace_back(helper, helper);
    }
  }
  for (const auto& [name, program] : children) {
    BATON_ASSIGN_OR_RETURN(const std::string path, options_.binaries.Find(program));
    const std::string place = absl::StrCat(libexec(), "/", name);
    options_.own_programs ? std::filesystem::copy(path, place, error)
                          : std::filesystem::create_symlink(path, place, error);
  }
  if (options_.own_programs) {
    const std::string place = libexec() + "/batond";
    std::filesystem::copy(child.program, place, error);
    child.program = place;
  }
  child.log_path = NewLog("batond");
  child.signal_at_our_end = SIGTERM;  // killed, it would leave its keeper behind
  child.arguments = {"--libexec", libexec()};
  if (options_.by_file) {
    const std::string file = directory_.File("config");
    if (!std::filesystem::exists(file)) BATON_RETURN_IF_ERROR(WriteConfig());
    child.arguments.insert(child.arguments.end(), {"--config", file});
  } else {
    AddOptions(&child.arguments);
  }
  AddPatience(&child.arguments);
  BATON_ASSIGN_OR_RETURN(batond_, ChildProcess::Start(child));
  BATON_RETURN_IF_ERROR(batond_->ReadLineWith("batond ready", kStart).status());
  operators_ = std::make_unique<OperatorClient>(OperatorSocketPath());
  BATON_ASSIGN_OR_RETURN(keeper_, KeeperView::Connect(directory_.File("state"), options_.service));
  return operators_->GetStatus().status();
}

void Cluster::AddOptions(std::vector<std::string>* arguments) const {
  arguments->insert(
      arguments->end(),
      {"--dev", "--state-dir", directory_.File("state"), "--device", options_.fabric.device,
       "--service", options_.service, "--shards", absl::StrCat(options_.shards),
       "--max-connections", absl::StrCat(options_.max_connections)});
  if (options_.yield_microseconds != 0) {
    arguments->insert(arguments->end(),
                      {"--yield-microseconds", absl::StrCat(options_.yield_microseconds)});
  }
  arguments->insert(arguments->end(), options_.batond_arguments.begin(),
                    options_.batond_arguments.end());
  AddNative(arguments);
}

absl::Status Cluster::WriteConfig(const std::string& service, const std::string& more) const {
  const std::string whole = directory_.File("config");
  std::ofstream(whole + ".new") << "state_dir: \"" << directory_.File("state")
                                << "\" services { name: \"" << options_.service
                                << "\" device { soft {} } shards: " << options_.shards
                                << " max_connections: " << options_.max_connections
                                << " yield_microseconds: " << options_.yield_microseconds << " "
                                << service << " } " << more << "\n";
  std::error_code error;
  std::filesystem::rename(whole + ".new", whole, error);
  if (error) return absl::InternalError(absl::StrCat(whole, ": ", error.message()));
  return absl::OkStatus();
}

void Cluster::AddNative(std::vector<std::string>* arguments) const {
  if (options_.native_object.empty()) return;
  arguments->insert(arguments->end(), {"--native", options_.native_object});
  std::vector<std::string> ledger = LedgerArguments("native");
  ledger.insert(ledger.end(), options_.native_arguments.begin(), options_.native_arguments.end());
  for (const std::string& argument : ledger) {
    arguments->push_back("--native-argument=" + argument);
  }
}

absl::StatusOr<std::unique_ptr<LedgerWorker>> Cluster::StartLedger(int version) {
  LedgerOptions options;
  options.version = version;
  return StartLedger(options);
}

absl::StatusOr<std::unique_ptr<ChildProcess>> Cluster::SpawnLedger(const LedgerOptions& options) {
  std::string name = options.program;
  if (name.empty()) {
    const bool test_hooks = !options.crash_at.empty() || options.previous_layout;
    name = absl::StrCat("ledger-v", options.version, test_hooks ? "-test-hooks" : "");
  }
  ChildOptions child;
  BATON_ASSIGN_OR_RETURN(child.program, options_.binaries.Find(name));
  if (!options.crash_at.empty()) child.environment.emplace_back("BATON_CRASH_AT", options.crash_at);
  if (options.previous_layout) child.environment.emplace_back("BATON_PREVIOUS_LAYOUT", "1");
  child.log_path = NewLog(name);
  child.arguments = LedgerArguments(absl::StrCat(name, "-", logs_.size()));
  child.arguments.insert(child.arguments.end(), options.arguments.begin(), options.arguments.end());
  return ChildProcess::Start(child);
}

absl::StatusOr<std::unique_ptr<LedgerWorker>> Cluster::StartLedger(const LedgerOptions& options) {
  auto worker = std::make_unique<LedgerWorker>();
  worker->version = options.version;
  BATON_ASSIGN_OR_RETURN(worker->process, SpawnLedger(options));
  BATON_ASSIGN_OR_RETURN(const std::string line,
                         worker->process->ReadLineWith("ledger ready", kStart));
  unsigned long long id = 0;
  unsigned port = 0;
  if (std::sscanf(line.c_str(), "ledger ready version=%*d worker=%llu port=%u", &id, &port) != 2) {
    return absl::InternalError("a ledger worker said \"" + line + "\"");
  }
  worker->id = id;
  port_ = static_cast<uint16_t>(port);
  // One that crashes by itself may be gone before it can be looked at.
  if (options.crash_at.empty() && options.await_control) {
    BATON_RETURN_IF_ERROR(WaitUntilReady(worker->id));
  }
  return worker;
}

std::vector<std::string> Cluster::LedgerArguments(const std::string& name) const {
  return {"--socket",       SocketPath(),
          "--service",      options_.service,
          "--listen",       absl::StrCat(options_.fabric.host, ":", port_),
          "--window",       absl::StrCat(options_.window),
          "--message-size", absl::StrCat(options_.message_bytes),
          "--name",         name};
}

absl::StatusOr<std::unique_ptr<PeerProcess>> Cluster::StartPeer(PeerOptions options) {
  BATON_ASSIGN_OR_RETURN(options.program, options_.binaries.Find("baton-peer"));
  options.fabric = options_.fabric;
  if (options.port == 0) options.port = port_;
  options.log_path = NewLog("baton-peer");
  return PeerProcess::Start(options);
}

absl::Status Cluster::WaitUntilListening() {
  return WaitUntil(
      "the service to listen",
      [&] {
        const absl::StatusOr<v1::GetServiceResponse> service = GetService();
        if (!service.ok() || service->service().listeners_size() == 0) return false;
        port_ = static_cast<uint16_t>(service->service().listeners(0).port());
        return true;
      },
      kStart);
}

absl::StatusOr<v1::GetStatusResponse> Cluster::AwaitBrokers() {
  absl::StatusOr<v1::GetStatusResponse> status;
  BATON_RETURN_IF_ERROR(WaitUntil("a broker and its twin", [&] {
    status = operators_->GetStatus();
    return status.ok() && status->services_size() == 1 && status->services(0).broker_pid() != 0 &&
           status->services(0).twin_pid() != 0;
  }));
  return status;
}

absl::StatusOr<v1::GetServiceResponse> Cluster::GetService() {
  return operators_->GetService(options_.service);
}

bool Cluster::OwnsAllShards(uint64_t worker) {
  const absl::StatusOr<v1::GetServiceResponse> service = GetService();
  return service.ok() && service->shards_size() > 0 &&
         std::all_of(service->shards().begin(), service->shards().end(),
                     [&](const v1::Shard& shard) { return shard.owner_worker_id() == worker; });
}

absl::Status Cluster::WaitUntilOwner(uint64_t worker) {
  return WaitUntil(absl::StrCat("worker ", worker, " to own every shard"),
                   [&] { return OwnsAllShards(worker); });
}

absl::Status Cluster::WaitUntilReady(uint64_t worker) {
  return WaitUntil(absl::StrCat("worker ", worker, " to be ready"), [&] {
    const absl::StatusOr<v1::GetServiceResponse> service = GetService();
    return service.ok() && std::any_of(service->workers().begin(), service->workers().end(),
                                       [&](const v1::Worker& one) {
                                         return one.id() == worker &&
                                                one.state() == v1::WORKER_STATE_READY;
                                       });
  });
}

absl::Status Cluster::WaitUntilGone(uint64_t worker) {
  return WaitUntil(absl::StrCat("worker ", worker, " to be gone"), [&] {
    const absl::StatusOr<v1::GetServiceResponse> service = GetService();
    return service.ok() && std::none_of(service->workers().begin(), service->workers().end(),
                                        [&](const v1::Worker& one) { return one.id() == worker; });
  });
}

absl::Status Cluster::KillWorker(uint64_t worker, std::chrono::milliseconds timeout) {
  absl::Status killed;
  BATON_RETURN_IF_ERROR(WaitUntilTaken(
      "the kill",
      [&] {
        killed = operators_->KillWorker(options_.service, worker).status();
        return killed;
      },
      timeout));
  absl::Status gone = WaitUntilGone(worker);
  if (gone.ok()) return gone;
  return absl::Status(gone.code(), absl::StrCat(gone.message(), "; its kill: ", killed.ToString()));
}

absl::Status Cluster::Handoff(uint64_t to_worker) {
  return operators_->Handoff(options_.service, to_worker).status();
}

absl::StatusOr<v1::Upgrade> Cluster::StartUpgrade(UpgradeOptions options) {
  BATON_ASSIGN_OR_RETURN(*options.plan.mutable_exec(), options_.binaries.Find(options.program));
  if (!options.arguments.empty()) {
    options.plan.set_replace_arguments(true);
    for (const std::string& argument : LedgerArguments(options.program)) {
      options.plan.add_arguments(argument);
    }
    for (const std::string& argument : options.arguments) options.plan.add_arguments(argument);
  }
  absl::StatusOr<v1::UpgradeResponse> response;
  BATON_RETURN_IF_ERROR(WaitUntilTaken("the upgrade", [&] {
    response = operators_->Upgrade(options_.service, options.plan);
    return response.status();
  }));
  BATON_RETURN_IF_ERROR(response.status());
  return response->upgrade();
}

absl::StatusOr<v1::Upgrade> Cluster::WaitForUpgrade(
    uint64_t id, const std::string& what, const std::function<bool(const v1::Upgrade&)>& wanted) {
  const auto deadline = std::chrono::steady_clock::now() + Patient(kUpgrade);
  v1::Upgrade upgrade;
  while (std::chrono::steady_clock::now() < deadline) {
    const absl::StatusOr<v1::ListUpgradesResponse> list =
        operators_->ListUpgrades(options_.service);
    if (list.ok()) {
      for (const v1::Upgrade& one : list->upgrades()) {
        if (one.id() == id) upgrade = one;
      }
      if (upgrade.id() == id && wanted(upgrade)) return upgrade;
    }
    std::this_thread::sleep_for(kLook);
  }
  return absl::DeadlineExceededError(absl::StrCat("waited in vain for ", what, " of upgrade ", id,
                                                  ": ", upgrade.ShortDebugString()));
}

absl::StatusOr<v1::Upgrade> Cluster::WaitUntilUpgradeEnds(uint64_t id) {
  return WaitForUpgrade(
      id, "the end", [](const v1::Upgrade& upgrade) { return upgrade.ended_unix_micros() != 0; });
}

absl::Status Cluster::KillBatond() { return batond_->Kill(); }

absl::Status Cluster::StartBatondAgain() { return StartBatond(); }

pid_t Cluster::ControlPid() const {
  pid_t pid = 0;
  std::ifstream(ControlLockPath(absl::StrCat(directory(), "/state"))) >> pid;
  std::string name;
  std::getline(std::ifstream(absl::StrCat("/proc/", pid, "/comm")), name);
  return name == "baton-control" ? pid : 0;
}

absl::Status Cluster::Stop() {
  if (batond_ == nullptr || batond_->HasEnded()) return absl::OkStatus();
  absl::Status status = batond_->Terminate(kStop);
  if (!status.ok() && !batond_->HasEnded()) batond_->Kill().IgnoreError();  // told in `status`
  return status;
}

void Cluster::DumpLogs() const {
  for (const std::string& path : logs_) {
    std::string log = ReadFile(path);
    if (log.empty()) continue;
    if (log.size() > kDumpedBytes) log = "…" + log.substr(log.size() - kDumpedBytes);
    std::fprintf(stderr, "---- %s\n%s", path.c_str(), log.c_str());
  }
}

}  // namespace baton::harness
