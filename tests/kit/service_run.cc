#include "tests/kit/service_run.h"

#include <arpa/inet.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "lib/base/file_descriptor.h"
#include "lib/base/status.h"
#include "tests/harness/wait_until.h"

namespace baton::testing_kit {
namespace {

// A worker that hangs has to fail the scenario. It is not to be killed and followed.
constexpr char kHangTimeoutMs[] = "600000";
// Of an upgrade: after this time the old workers end.
constexpr uint32_t kWatchWindowMs = 100;
constexpr int kPorts = 3;           // to try
constexpr int kWorkers = 2;         // one owns the shard, the other stands by
constexpr size_t kLogBytes = 4000;  // of each process, in messages

// Nobody else has it now. Somebody may take it before the worker does, which then says so and ends.
absl::StatusOr<uint16_t> FreePort() {
  const FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* const name = reinterpret_cast<sockaddr*>(&address);
  if (!socket || bind(socket.get(), name, length) != 0 ||
      getsockname(socket.get(), name, &length) != 0) {
    return ErrnoStatus(errno, "cannot find a free port of 127.0.0.1");
  }
  return ntohs(address.sin_port);
}

absl::Status CheckCommand(const Command& worker) {
  if (!worker.empty() && !worker.front().empty()) return absl::OkStatus();
  return absl::InvalidArgumentError("worker: names no program");
}

bool WasKilled(harness::ChildProcess& worker) {
  const absl::StatusOr<int> end = worker.WaitEnd(std::chrono::milliseconds(0));
  return end.ok() && WIFSIGNALED(*end) && WTERMSIG(*end) == SIGKILL;
}

bool IsReadable(int fd) {
  pollfd entry = {fd, POLLIN, 0};
  return poll(&entry, 1, 0) == 1;
}

// `before` and what the environment has in the variable, as paths are joined.
std::string BeforeOthers(const std::string& before, const char* variable) {
  const char* const others = std::getenv(variable);
  return others != nullptr && *others != 0 ? absl::StrCat(before, ":", others) : before;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Killer>> Killer::Start(pid_t victim, uint64_t microseconds) {
  BATON_ASSIGN_OR_RETURN(FileDescriptor pidfd, OpenPidfd(victim));
  std::unique_ptr<Killer> killer(new Killer(std::move(pidfd)));
  try {
    killer->thread_ = std::thread(
        [fd = killer->victim_.get(), microseconds, hurry = killer->hurry_.get_future()] {
          hurry.wait_for(std::chrono::microseconds(microseconds));
          SendSignal(fd, SIGKILL);
        });
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(absl::StrCat("cannot start a thread: ", error.what()));
  }
  return killer;
}

Killer::~Killer() {
  hurry_.set_value();
  if (thread_.joinable()) thread_.join();
}

absl::StatusOr<std::unique_ptr<ServiceRun>> ServiceRun::Start(RunOptions options) {
  BATON_RETURN_IF_ERROR(CheckCommand(options.worker));
  if (options.native && !options.crash_at.empty()) {
    return absl::InvalidArgumentError(
        "crash_at: the keeper starts native workers, all of them alike: kill them at random");
  }
  const std::string hooks = options.installation.hooks + "/libbaton.so.0";
  if (!options.crash_at.empty() && access(hooks.c_str(), R_OK) != 0) {
    return ErrnoStatus(errno, absl::StrCat("crash_at needs ", hooks, " of libbaton-testing"));
  }
  BATON_ASSIGN_OR_RETURN(harness::TempDirectory directory, harness::TempDirectory::Create());
  std::unique_ptr<ServiceRun> run(new ServiceRun(std::move(options), std::move(directory)));
  BATON_ASSIGN_OR_RETURN(run->port_, FreePort());
  BATON_RETURN_IF_ERROR(run->StartBatond());
  if (run->options_.native) {
    BATON_RETURN_IF_ERROR(run->AwaitKeepersWorkers());
    return run;
  }
  BATON_RETURN_IF_ERROR(run->StartFirstWorker());
  BATON_RETURN_IF_ERROR(run->StartWorker(/*doomed=*/false));
  return run;
}

ServiceRun::~ServiceRun() {
  killer_.reset();
  workers_.clear();
  if (batond_) batond_->Terminate(kPatience).IgnoreError();
}

absl::Status ServiceRun::StartBatond() {
  harness::ChildOptions child;
  child.program = options_.installation.libexec + "/batond";
  child.arguments = {
      "--dev",          "--state-dir", directory_.File("state"),      "--service",
      options_.service, "--libexec",   options_.installation.libexec, "--hang-timeout-ms",
      kHangTimeoutMs};
  child.arguments.insert(child.arguments.end(), options_.batond.begin(), options_.batond.end());
  if (options_.native) {
    const Command command = Filled(options_.worker);
    child.arguments.insert(child.arguments.end(), {"--native", command.front()});
    for (size_t i = 1; i < command.size(); ++i) {
      child.arguments.push_back("--native-argument=" + command[i]);
    }
  }
  child.log_path = directory_.File("batond.log");
  child.signal_at_our_end = SIGTERM;  // if it was killed, its services would go on
  BATON_ASSIGN_OR_RETURN(batond_, harness::ChildProcess::Start(child));
  const absl::Status ready = batond_->ReadLineWith("batond ready", kPatience).status();
  if (!ready.ok()) {
    return absl::UnavailableError(
        absl::StrCat("batond does not start: ", ready.message(), "\n", Logs()));
  }
  operators_ = std::make_unique<harness::OperatorClient>(directory_.File("state/operator.sock"));
  return absl::OkStatus();
}

// Another process may take the port before the worker has it.
absl::Status ServiceRun::StartFirstWorker() {
  absl::Status status;
  for (int i = 0; i < kPorts; ++i) {
    status = StartWorker(/*doomed=*/true);
    if (!absl::IsUnavailable(status)) return status;
    workers_.clear();
    BATON_ASSIGN_OR_RETURN(port_, FreePort());
  }
  return status;
}

Command ServiceRun::Filled(const Command& worker) const {
  Command words = worker;
  for (std::string& word : words) {
    word = absl::StrReplaceAll(
        word, {{"{socket}", absl::StrCat(directory_.File("state/"), options_.service, ".sock")},
               {"{port}", absl::StrCat(port_)}});
  }
  // The keeper starts it elsewhere.
  std::error_code error;
  const std::filesystem::path path = std::filesystem::absolute(words.front(), error);
  if (!error) words.front() = path.string();
  return words;
}

absl::Status ServiceRun::StartWorker(bool doomed) {
  harness::ChildOptions child;
  const Command words = Filled(options_.worker);
  child.program = words.front();
  child.arguments.assign(words.begin() + 1, words.end());
  child.log_path = directory_.File(absl::StrCat("worker-", workers_.size() + 1, ".log"));
  child.logs_output = true;
  doomed = doomed && !options_.crash_at.empty();
  if (doomed) {
    child.environment = {
        {"LD_LIBRARY_PATH", BeforeOthers(options_.installation.hooks, "LD_LIBRARY_PATH")},
        {"BATON_CRASH_AT", options_.crash_at}};
  }
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<harness::ChildProcess> started,
                         harness::ChildProcess::Start(child));
  harness::ChildProcess& worker = *started;
  BATON_ASSIGN_OR_RETURN(FileDescriptor pidfd, OpenPidfd(worker.pid()));
  workers_.push_back(
      std::make_unique<Worker>(Worker{worker.pid(), std::move(pidfd), std::move(started), doomed}));
  bool ready = false;
  const absl::Status waited = harness::WaitUntil(
      absl::StrCat("worker ", child.program, " to attach and be ready"),
      [&] {
        const absl::StatusOr<v1::ListWorkersResponse> listed = ListWorkers();
        ready = listed.ok() && absl::c_any_of(listed->workers(), [&](const auto& one) {
                  return one.worker().pid() == worker.pid() &&
                         one.worker().state() == v1::WORKER_STATE_READY;
                });
        return ready || worker.HasEnded();
      },
      kPatience);
  if (!waited.ok()) {
    return absl::DeadlineExceededError(absl::StrCat(waited.message(), "\n", Logs()));
  }
  if (ready || (doomed && WasKilled(worker))) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("worker ", child.program, " ended before it was ready\n", Logs()));
}

absl::Status ServiceRun::AwaitKeepersWorkers() {
  const auto enter = [&] {
    const absl::StatusOr<v1::ListWorkersResponse> listed = ListWorkers();
    if (!listed.ok()) return false;
    int ready = 0;
    for (const auto& one : listed->workers()) {
      if (one.worker().state() != v1::WORKER_STATE_READY) continue;
      const pid_t pid = one.worker().pid();
      const Worker* worker = Find(pid);
      if (worker == nullptr) {
        absl::StatusOr<FileDescriptor> pidfd = OpenPidfd(pid);
        if (!pidfd.ok() || IsReadable(pidfd->get())) continue;  // it has ended
        workers_.push_back(std::make_unique<Worker>(Worker{pid, *std::move(pidfd), nullptr}));
        worker = workers_.back().get();
      }
      ready += worker->retired ? 0 : 1;
    }
    return ready >= kWorkers;
  };
  const absl::Status waited =
      harness::WaitUntil("two workers to be ready that the keeper starts", enter, kPatience);
  if (waited.ok()) return absl::OkStatus();
  return absl::DeadlineExceededError(absl::StrCat(waited.message(), "\n", Logs()));
}

absl::Status ServiceRun::ReplaceDoomed() {
  const Worker& first = *workers_.front();
  if (!first.doomed || replaced_doomed_ || !first.process->HasEnded()) return absl::OkStatus();
  replaced_doomed_ = true;
  return StartWorker(/*doomed=*/false);
}

absl::StatusOr<v1::ListWorkersResponse> ServiceRun::ListWorkers() const {
  return operators_->ListWorkers(options_.service);
}

absl::StatusOr<ServiceRun::Worker*> ServiceRun::Owner() {
  BATON_ASSIGN_OR_RETURN(const v1::ListWorkersResponse listed, ListWorkers());
  for (const auto& one : listed.workers()) {
    if (one.worker().shards().empty()) continue;
    if (Worker* const owner = Find(one.worker().pid())) return owner;
  }
  return nullptr;
}

ServiceRun::Worker* ServiceRun::Find(pid_t pid) {
  for (const auto& worker : workers_) {
    if (worker->pid == pid && !IsReadable(worker->pidfd.get())) return worker.get();
  }
  return nullptr;
}

absl::StatusOr<ServiceRun::Worker*> ServiceRun::AwaitOwner() {
  absl::StatusOr<Worker*> owner = nullptr;
  BATON_RETURN_IF_ERROR(harness::WaitUntil(
      "a worker to own the shard",
      [&] {
        owner = Owner();
        return !owner.ok() || *owner != nullptr;
      },
      kPatience));
  return owner;
}

absl::Status ServiceRun::KillOwnerAfter(uint64_t microseconds) {
  if (victim_ != nullptr) {
    return absl::FailedPreconditionError("a kill was asked for already: call baton_test_settle()");
  }
  BATON_RETURN_IF_ERROR(ReplaceDoomed());
  BATON_ASSIGN_OR_RETURN(Worker * owner, AwaitOwner());
  BATON_ASSIGN_OR_RETURN(killer_, Killer::Start(owner->pid, microseconds));
  victim_ = owner;
  victim_->killed = true;
  return absl::OkStatus();
}

absl::Status ServiceRun::Settle() {
  if (victim_ == nullptr) return absl::OkStatus();
  const Worker& victim = *std::exchange(victim_, nullptr);
  BATON_RETURN_IF_ERROR(harness::WaitUntil(
      "the owner to be killed", [&] { return IsReadable(victim.pidfd.get()); }, kPatience));
  killer_.reset();
  // The keeper starts the next native worker by itself.
  BATON_RETURN_IF_ERROR(options_.native ? AwaitKeepersWorkers() : StartWorker(/*doomed=*/false));
  return AwaitOwner().status();
}

absl::Status ServiceRun::HandOff() {
  BATON_RETURN_IF_ERROR(ReplaceDoomed());
  return operators_->Handoff(options_.service, /*to_worker=*/0).status();
}

absl::Status ServiceRun::Upgrade(const Command& worker) {
  if (!worker.empty()) BATON_RETURN_IF_ERROR(CheckCommand(worker));
  BATON_RETURN_IF_ERROR(Settle());
  BATON_RETURN_IF_ERROR(ReplaceDoomed());
  const Command former = options_.worker;
  if (!worker.empty()) options_.worker = worker;
  Command command = Filled(options_.worker);
  // The keeper starts it in the environment of those that run.
  if (!options_.crash_at.empty()) {
    command.insert(command.begin(), {"/usr/bin/env", "-u", "BATON_CRASH_AT"});
  }
  v1::UpgradePlan plan;
  plan.set_exec(command.front());
  plan.set_replace_arguments(true);
  for (size_t i = 1; i < command.size(); ++i) plan.add_arguments(command[i]);
  if (!options_.native) plan.set_workers(kWorkers);
  plan.set_watch_window_ms(kWatchWindowMs);
  const absl::StatusOr<v1::UpgradeResponse> begun = operators_->Upgrade(options_.service, plan);
  v1::Upgrade upgrade;
  absl::Status status = begun.status();
  if (status.ok()) status = AwaitEnd(begun->upgrade().id(), &upgrade);
  if (status.ok() && upgrade.phase() != v1::UPGRADE_PHASE_COMPLETED) {
    status = absl::FailedPreconditionError(
        absl::StrCat("the upgrade to ", options_.worker.front(), " failed: ", upgrade.detail()));
  }
  if (!status.ok()) {
    options_.worker = former;
    return status;
  }
  for (const auto& one : workers_) one->retired = true;
  replaced_doomed_ = true;
  return AwaitKeepersWorkers();
}

absl::Status ServiceRun::AwaitEnd(uint64_t upgrade_id, v1::Upgrade* upgrade) {
  return harness::WaitUntil(
      "the upgrade to end",
      [&] {
        const auto listed = operators_->ListUpgrades(options_.service);
        if (!listed.ok()) return false;
        for (const v1::Upgrade& one : listed->upgrades()) {
          if (one.id() == upgrade_id) *upgrade = one;
        }
        return upgrade->ended_unix_micros() != 0;
      },
      kPatience);
}

absl::StatusOr<bool> ServiceRun::Crashed() {
  for (const auto& worker : workers_) {
    if (!IsReadable(worker->pidfd.get()) || worker->killed || worker->retired) continue;
    if (worker->doomed && WasKilled(*worker->process)) continue;
    return absl::InternalError(
        absl::StrCat("worker ", worker->pid, " has ended, and nobody was to end it"));
  }
  const Worker& first = *workers_.front();
  return first.doomed && !first.killed && WasKilled(*first.process);
}

std::string ServiceRun::Logs() const {
  std::string logs = absl::StrCat("--- batond:\n", batond_ ? batond_->LogTail(kLogBytes) : "");
  for (size_t i = 0; i < workers_.size(); ++i) {
    if (workers_[i]->process == nullptr) continue;  // it logs with batond
    absl::StrAppend(&logs, "--- worker ", i + 1, ":\n", workers_[i]->process->LogTail(kLogBytes));
  }
  return logs;
}

}  // namespace baton::testing_kit
