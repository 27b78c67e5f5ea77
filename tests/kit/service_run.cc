#include "tests/kit/service_run.h"

#include <arpa/inet.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "lib/base/errno_status.h"
#include "lib/base/file_descriptor.h"
#include "lib/base/status_macros.h"
#include "tests/harness/wait_until.h"

namespace baton::testing_kit {
namespace {

constexpr std::chrono::seconds kPatience{30};
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

}  // namespace

absl::StatusOr<std::unique_ptr<ServiceRun>> ServiceRun::Start(RunOptions options) {
  if (options.worker.empty()) return absl::InvalidArgumentError("worker: names no program");
  BATON_ASSIGN_OR_RETURN(harness::TempDirectory directory, harness::TempDirectory::Create());
  std::unique_ptr<ServiceRun> run(new ServiceRun(std::move(options), std::move(directory)));
  BATON_ASSIGN_OR_RETURN(run->port_, FreePort());
  BATON_RETURN_IF_ERROR(run->StartBatond());
  for (const bool doomed : {true, false}) {
    const absl::Status status = run->StartWorker(doomed);
    if (!status.ok()) {
      return absl::Status(status.code(), absl::StrCat(status.message(), "\n", run->Logs()));
    }
  }
  return run;
}

ServiceRun::~ServiceRun() {
  if (killer_.joinable()) killer_.join();
  workers_.clear();
  if (batond_) batond_->Terminate(kPatience).IgnoreError();
}

absl::Status ServiceRun::StartBatond() {
  harness::ChildOptions child;
  child.program = options_.installation.libexec + "/batond";
  child.arguments = {"--dev",          "--state-dir", directory_.File("state"),     "--service",
                     options_.service, "--libexec",   options_.installation.libexec};
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
    // It has the same soname, so the program's own is not loaded.
    child.environment = {{"LD_PRELOAD", options_.installation.hooks + "/libbaton.so.0"},
                         {"BATON_CRASH_AT", options_.crash_at}};
  }
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<harness::ChildProcess> started,
                         harness::ChildProcess::Start(child));
  harness::ChildProcess& worker = *workers_.emplace_back(std::move(started));
  bool ready = false;
  BATON_RETURN_IF_ERROR(harness::WaitUntil(
      absl::StrCat("worker ", child.program, " to attach and be ready"),
      [&] {
        const absl::StatusOr<v1::ListWorkersResponse> listed = ListWorkers();
        ready = listed.ok() && std::any_of(listed->workers().begin(), listed->workers().end(),
                                           [&](const auto& one) {
                                             return one.worker().pid() == worker.pid() &&
                                                    one.worker().state() == v1::WORKER_STATE_READY;
                                           });
        return ready || worker.HasEnded();
      },
      kPatience));
  if (ready || (doomed && WasKilled(worker))) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("worker ", child.program,
                                             " ended before it was ready: worker.Run() or "
                                             "baton_run() has to be reached"));
}

absl::StatusOr<v1::ListWorkersResponse> ServiceRun::ListWorkers() const {
  return operators_->ListWorkers(options_.service);
}

absl::StatusOr<harness::ChildProcess*> ServiceRun::Owner() {
  BATON_ASSIGN_OR_RETURN(const v1::ListWorkersResponse listed, ListWorkers());
  for (const auto& one : listed.workers()) {
    if (one.worker().shards().empty()) continue;
    for (const auto& worker : workers_) {
      if (worker->pid() == one.worker().pid() && !worker->HasEnded()) return worker.get();
    }
  }
  return nullptr;
}

absl::Status ServiceRun::KillOwnerAfter(uint64_t microseconds) {
  if (victim_ != nullptr) {
    return absl::FailedPreconditionError("a kill was asked for already: call baton_test_settle()");
  }
  absl::Status asked;
  BATON_RETURN_IF_ERROR(harness::WaitUntil(
      "a worker to own the shard",
      [&] {
        absl::StatusOr<harness::ChildProcess*> owner = Owner();
        asked = owner.status();
        if (owner.ok()) victim_ = *owner;
        return victim_ != nullptr || !asked.ok();
      },
      kPatience));
  BATON_RETURN_IF_ERROR(asked);
  // A descriptor of the thread's own: ChildProcess is not thread-safe.
  const int victim = static_cast<int>(syscall(SYS_pidfd_open, victim_->pid(), 0));
  if (victim < 0) return ErrnoStatus(errno, "cannot open a pidfd of the owner");
  killer_ = std::thread([victim = FileDescriptor(victim), microseconds] {
    std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
    syscall(SYS_pidfd_send_signal, victim.get(), SIGKILL, nullptr, 0);
  });
  return absl::OkStatus();
}

absl::Status ServiceRun::Settle() {
  if (victim_ == nullptr) return absl::OkStatus();
  killer_.join();
  harness::ChildProcess& victim = *std::exchange(victim_, nullptr);
  BATON_RETURN_IF_ERROR(victim.WaitEnd(kPatience).status());
  BATON_RETURN_IF_ERROR(StartWorker(/*doomed=*/false));
  return harness::WaitUntil(
      "another worker to own the shard",
      [&] {
        const absl::StatusOr<harness::ChildProcess*> owner = Owner();
        return owner.ok() && *owner != nullptr;
      },
      kPatience);
}

absl::Status ServiceRun::HandOff() {
  return operators_->Handoff(options_.service, /*to_worker=*/0).status();
}

absl::StatusOr<uint32_t> ServiceRun::Kills() {
  uint32_t kills = 0;
  for (const auto& worker : workers_) {
    if (!worker->HasEnded()) continue;
    if (!WasKilled(*worker)) {
      return absl::InternalError(
          absl::StrCat("worker ", worker->pid(), " has ended, and nobody killed it"));
    }
    ++kills;
  }
  return kills;
}

std::string ServiceRun::Logs() const {
  std::string logs = absl::StrCat("--- batond:\n", batond_ ? batond_->LogTail(kLogBytes) : "");
  for (size_t i = 0; i < workers_.size(); ++i) {
    absl::StrAppend(&logs, "--- worker ", i + 1, ":\n", workers_[i]->LogTail(kLogBytes));
  }
  return logs;
}

}  // namespace baton::testing_kit
