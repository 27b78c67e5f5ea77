#include "tests/kit/service_run.h"

#include <arpa/inet.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
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
constexpr int kPorts = 3;           // to try
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

bool WasKilled(harness::ChildProcess& worker) {
  const absl::StatusOr<int> end = worker.WaitEnd(std::chrono::milliseconds(0));
  return end.ok() && WIFSIGNALED(*end) && WTERMSIG(*end) == SIGKILL;
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
  if (options.worker.empty()) return absl::InvalidArgumentError("worker: names no program");
  const std::string hooks = options.installation.hooks + "/libbaton.so.0";
  if (!options.crash_at.empty() && access(hooks.c_str(), R_OK) != 0) {
    return ErrnoStatus(errno, absl::StrCat("crash_at needs ", hooks, " of libbaton-testing"));
  }
  BATON_ASSIGN_OR_RETURN(harness::TempDirectory directory, harness::TempDirectory::Create());
  std::unique_ptr<ServiceRun> run(new ServiceRun(std::move(options), std::move(directory)));
  BATON_RETURN_IF_ERROR(run->StartBatond());
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
    BATON_ASSIGN_OR_RETURN(port_, FreePort());
    status = StartWorker(/*doomed=*/true);
    if (!absl::IsUnavailable(status)) return status;
    workers_.clear();
  }
  return status;
}

absl::Status ServiceRun::StartWorker(bool doomed) {
  harness::ChildOptions child;
  std::vector<std::string> words = options_.worker;
  for (std::string& word : words) {
    word = absl::StrReplaceAll(
        word, {{"{socket}", absl::StrCat(directory_.File("state/"), options_.service, ".sock")},
               {"{port}", absl::StrCat(port_)}});
  }
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
  workers_.push_back(std::make_unique<Worker>(Worker{std::move(started), doomed}));
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
    for (const auto& worker : workers_) {
      if (worker->process->pid() == one.worker().pid() && !worker->process->HasEnded()) {
        return worker.get();
      }
    }
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
  BATON_ASSIGN_OR_RETURN(killer_, Killer::Start(owner->process->pid(), microseconds));
  victim_ = owner;
  victim_->killed = true;
  return absl::OkStatus();
}

absl::Status ServiceRun::Settle() {
  if (victim_ == nullptr) return absl::OkStatus();
  harness::ChildProcess& victim = *std::exchange(victim_, nullptr)->process;
  BATON_RETURN_IF_ERROR(victim.WaitEnd(kPatience).status());
  killer_.reset();
  BATON_RETURN_IF_ERROR(StartWorker(/*doomed=*/false));
  return AwaitOwner().status();
}

absl::Status ServiceRun::HandOff() {
  BATON_RETURN_IF_ERROR(ReplaceDoomed());
  return operators_->Handoff(options_.service, /*to_worker=*/0).status();
}

absl::StatusOr<bool> ServiceRun::Crashed() {
  for (const auto& worker : workers_) {
    if (!worker->process->HasEnded()) continue;
    if ((worker->killed || worker->doomed) && WasKilled(*worker->process)) continue;
    return absl::InternalError(
        absl::StrCat("worker ", worker->process->pid(), " has ended, and nobody was to end it"));
  }
  const Worker& first = *workers_.front();
  return first.doomed && !first.killed && first.process->HasEnded();
}

std::string ServiceRun::Logs() const {
  std::string logs = absl::StrCat("--- batond:\n", batond_ ? batond_->LogTail(kLogBytes) : "");
  for (size_t i = 0; i < workers_.size(); ++i) {
    absl::StrAppend(&logs, "--- worker ", i + 1, ":\n", workers_[i]->process->LogTail(kLogBytes));
  }
  return logs;
}

}  // namespace baton::testing_kit
