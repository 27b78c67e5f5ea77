#include "supervisor/keeper/programs/native_workers.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "lib/base/file_descriptor.h"
#include "lib/base/status.h"
#include "lib/channel/waits.h"
#include "supervisor/driver/native/native_driver.h"
#include "supervisor/keeper/sessions/shard_owners.h"

namespace baton::keeper {
namespace {

// Key of the program that serves, once an upgrade has changed it.
constexpr char kHeldProgram[] = "lasting/native_program";

internal::Program ProgramOf(const v1::NativeConfig& config) {
  internal::Program program;
  program.set_path(config.object());
  for (const std::string& argument : config.arguments()) program.add_arguments(argument);
  return program;
}

bool IsSame(const internal::Program& one, const internal::Program& other) {
  return one.path() == other.path() &&
         std::equal(one.arguments().begin(), one.arguments().end(), other.arguments().begin(),
                    other.arguments().end());
}

}  // namespace

NativeWorkers::NativeWorkers(const CommonParts& parts, WorkerSessions& sessions)
    : parts_(parts),
      program_(ProgramOf(parts.config.service().native())),
      wanted_(parts.config.service().native().workers()),
      sessions_(sessions),
      pause_(parts.loop) {}

void NativeWorkers::KeepRunning() {
  const auto serving = [this] {
    return std::count_if(processes_.begin(), processes_.end(),
                         [this](const auto& one) { return IsSame(one.second->program, program_); });
  };
  while (!pausing_ && serving() < wanted_) {
    const absl::StatusOr<StartedProgram> started = Start(program_);
    if (started.ok()) continue;
    parts_.events.Add(driver_process::kWorkerFailed, MessageOf(started.status()));
    StartLater();
  }
}

// Leaves out places whose former worker has detached, and whose process has not ended.
absl::StatusOr<DriverClient::ForkedWorker> NativeWorkers::ForkAtFreePlace(
    const internal::Program& program) {
  std::vector<internal::WorkerPlace> refused;
  absl::StatusOr<DriverClient::ForkedWorker> forked;
  do {
    const absl::StatusOr<internal::WorkerPlace> reserved = sessions_.Reserve();
    if (!reserved.ok()) {
      if (refused.empty()) forked = reserved.status();
      break;
    }
    forked = parts_.driver.Fork(*reserved, program);
    if (!forked.ok()) refused.push_back(*reserved);
  } while (absl::IsUnavailable(forked.status()));
  for (const internal::WorkerPlace& place : refused) sessions_.FreePlace(place);
  return forked;
}

absl::StatusOr<StartedProgram> NativeWorkers::Start(const internal::Program& program) {
  BATON_ASSIGN_OR_RETURN(DriverClient::ForkedWorker forked, ForkAtFreePlace(program));
  const uint64_t worker_id = forked.facts.place().id();
  StartedProgram started;
  started.pid = forked.facts.pid();
  Watch(std::move(forked));
  started.pidfd = PidfdOf(started.pid);
  parts_.events.Add("native_worker_forked",
                    absl::StrCat("worker ", worker_id, " (pid ", started.pid, ") was forked for ",
                                 program.path()),
                    worker_id);
  return started;
}

void NativeWorkers::Watch(DriverClient::ForkedWorker fork) {
  const pid_t pid = fork.facts.pid();
  auto process = std::make_unique<Process>(parts_.loop);
  process->program = fork.facts.program();
  process->worker_id = fork.facts.place().id();
  process->pidfd.assign(CopyOf(fork.pidfd.get()).Release());
  AwaitReadable(process->pidfd, [this, pid] { OnEnded(pid); });
  processes_[pid] = std::move(process);
  if (!fork.session) return;
  // The former keeper died while the worker attached. The worker waits for an answer that nobody
  // has.
  if (sessions_.IsAttached(fork.facts.place().id())) {
    (void)SendSignal(fork.pidfd.get(), SIGKILL);
    return;
  }
  sessions_.AcceptChild(std::move(fork.session), {pid, fork.facts.uid(), fork.facts.gid()},
                        std::move(fork.pidfd), fork.facts.place());
}

absl::Status NativeWorkers::Restore(const DriverClient::HeldByKey& held) {
  if (const auto entry = held.find(kHeldProgram); entry != held.end()) {
    parts_.driver.DealWithHeld(kHeldProgram,
                               [&] { (void)program_.ParseFromString(entry->second.value); });
  }
  BATON_ASSIGN_OR_RETURN(std::vector<DriverClient::ForkedWorker> forks, parts_.driver.ListForks());
  for (DriverClient::ForkedWorker& fork : forks) Watch(std::move(fork));
  return absl::OkStatus();
}

FileDescriptor NativeWorkers::PidfdOf(pid_t pid) const {
  const auto process = processes_.find(pid);
  if (process == processes_.end()) return {};
  return CopyOf(process->second->pidfd.native_handle());
}

// ---------------------------------------------------------------- ends

std::string NativeWorkers::Reap(pid_t pid, int) { return parts_.driver.Reap(pid).how(); }

void NativeWorkers::OnEnded(pid_t pid) {
  const internal::Reaped end = parts_.driver.Reap(pid);
  const auto found = processes_.find(pid);
  const uint64_t worker_id = found->second->worker_id;
  processes_.erase(found);
  parts_.events.Add("native_worker_ended",
                    absl::StrCat("worker ", worker_id, " (pid ", pid, ") ", end.how()), worker_id);
  pause_length_.NoteEnd(end.lived_ns(), end.served(), parts_.policies.policy());
  StartLater();
}

// ---------------------------------------------------------------- upgrades

absl::Status NativeWorkers::Check(const std::string& path) const {
  return CheckProgramPath(path, "a shared object, which native services are upgraded to");
}

void NativeWorkers::Read(pid_t, uint32_t uid, uint32_t gid, ProgramDone done) {
  internal::Program program = program_;
  program.set_uid(uid);
  program.set_gid(gid);
  done(std::move(program));
}

// Also ends workers of the old program that were forked while the new ones were watched.
void NativeWorkers::OnServing(const internal::Program& program) {
  program_ = program;
  parts_.driver.Hold(kHeldProgram, program_.SerializeAsString());
  EndOthers({});
  KeepRunning();
}

void NativeWorkers::EndUnused() {
  std::set<uint64_t> owners;
  for (const auto& [shard, owner] : OwnersOf(parts_.driver)) owners.insert(owner);
  EndOthers(owners);
}

// Spares the programs of the workers in `owners`.
void NativeWorkers::EndOthers(const std::set<uint64_t>& owners) {
  for (const auto& [pid, process] : processes_) {
    const internal::Program& program = process->program;
    const bool owns = absl::c_any_of(processes_, [&](const auto& other) {
      return owners.count(other.second->worker_id) != 0 && IsSame(other.second->program, program);
    });
    if (!owns && !IsSame(program, program_)) End(pid, *process);
  }
}

// A worker that has not attached cannot be asked to end, so it is killed.
void NativeWorkers::End(pid_t pid, Process& process) {
  if (!sessions_.IsAttached(process.worker_id)) {
    (void)SendSignal(process.pidfd.native_handle(), SIGKILL);
    return;
  }
  sessions_.AskToStop(process.worker_id);
  After(process.overdue, sessions_.stop_timeout(), [this, pid] {
    const auto found = processes_.find(pid);
    if (found == processes_.end()) return;
    // The worker may have detached without ending.
    if (!sessions_.KillOverdue(found->second->worker_id).ok()) {
      (void)SendSignal(found->second->pidfd.native_handle(), SIGKILL);
    }
  });
}

void NativeWorkers::StartLater() {
  if (std::exchange(pausing_, true)) return;
  After(pause_, pause_length_.length(), [this] {
    pausing_ = false;
    KeepRunning();
  });
}

}  // namespace baton::keeper
