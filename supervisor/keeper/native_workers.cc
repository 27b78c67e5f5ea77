#include "supervisor/keeper/native_workers.h"

#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/clock.h"
#include "lib/base/errno_status.h"
#include "lib/base/status_macros.h"
#include "lib/base/status_text.h"
#include "lib/loop/await_readable.h"
#include "supervisor/keeper/native_driver.h"

namespace baton::keeper {
namespace {

NativeProgram ProgramOf(const v1::NativeConfig& config) {
  NativeProgram program;
  program.object = config.object();
  program.arguments.assign(config.arguments().begin(), config.arguments().end());
  if (config.has_uid()) program.uid = config.uid();
  if (config.has_gid()) program.gid = config.gid();
  return program;
}

}  // namespace

NativeWorkers::NativeWorkers(boost::asio::io_context& loop, const internal::KeeperConfig& config,
                             NativeEngine& engine, WorkerSessions& sessions,
                             const Policies& policies, EventLog& events, const Lifeline& lifeline,
                             int output)
    : loop_(loop),
      program_(ProgramOf(config.service().native())),
      wanted_(config.service().native().workers()),
      config_(config),
      engine_(engine),
      sessions_(sessions),
      policies_(policies),
      events_(events),
      lifeline_(lifeline),
      output_(output),
      held_replies_(loop),
      held_overdue_(loop),
      pause_(loop) {}

NativeWorkers::~NativeWorkers() {
  for (const auto& [pid, process] : processes_) {
    syscall(SYS_pidfd_send_signal, process->pidfd.native_handle(), SIGKILL, nullptr, 0);
  }
}

void NativeWorkers::KeepRunning() {
  const auto serving = [this] {
    return std::count_if(processes_.begin(), processes_.end(),
                         [this](const auto& one) { return one.second->program == program_; });
  };
  while (!pausing_ && serving() < wanted_) {
    const absl::StatusOr<StartedProgram> started = Fork(program_, /*on_trial=*/false);
    if (started.ok()) continue;
    events_.Add(std::string(kWorkerFailed), std::string(MessageOf(started.status())),
                UnixMicroseconds(), 0, -1, -1);
    StartLater();
  }
}

absl::StatusOr<StartedProgram> NativeWorkers::Fork(const NativeProgram& program, bool on_trial) {
  BATON_ASSIGN_OR_RETURN(const Reservation reserved, sessions_.Reserve());
  NativeInheritance inheritance = engine_.InheritanceOf(reserved.slot, reserved.worker_id);
  inheritance.lifeline = lifeline_.worker.get();
  inheritance.presence = lifeline_.presence.get();
  absl::StatusOr<ForkedWorker> forked = ForkWorker(program, std::move(inheritance), output_);
  if (!forked.ok()) {
    sessions_.Release(reserved);
    return forked.status();
  }
  Hold(reserved.slot, reserved.worker_id, forked->pidfd.get());
  auto process = std::make_unique<Process>(loop_);
  process->program = program;
  process->on_trial = on_trial;
  process->worker_id = reserved.worker_id;
  process->forked_ns = MonotonicNanoseconds();
  process->pidfd.assign(dup(forked->pidfd.get()));
  AwaitReadable(process->pidfd, [this, pid = forked->pid] { OnEnded(pid); });
  StartedProgram started;
  started.pid = forked->pid;
  started.pidfd.Reset(dup(forked->pidfd.get()));
  processes_[forked->pid] = std::move(process);
  PeerCredentials credentials;
  credentials.pid = forked->pid;
  credentials.uid = program.uid.value_or(geteuid());
  credentials.gid = program.gid.value_or(getegid());
  events_.Add("native_worker_forked",
              absl::StrCat("worker ", reserved.worker_id, " (pid ", forked->pid,
                           ") was forked for ", program.object),
              UnixMicroseconds(), reserved.worker_id, -1, -1);
  sessions_.AcceptChild(std::move(forked->session), credentials, std::move(forked->pidfd),
                        reserved);
  return started;
}

// ---------------------------------------------------------------- what batond holds of them

void NativeWorkers::HoldProcesses(HeldDescriptors* held, HeldWorkers workers) {
  held_ = held;
  held_workers_ = std::move(workers);
}

// Without it, the next keeper cannot end the worker alone, should it hang: it would end the
// service. Nothing here waits: batond may stand still, and this thread keeps the service.
void NativeWorkers::Hold(uint32_t slot, uint64_t worker_id, int pidfd) {
  if (held_ == nullptr) return;
  held_workers_->Put(slot, pidfd, [this, worker_id](const absl::Status& status) {
    if (!status.ok()) TellNotHeld(worker_id, MessageOf(status));
  });
  AwaitHeld();
}

void NativeWorkers::AwaitHeld() {
  if (!held_->IsReplyDue() || std::exchange(awaiting_held_, true)) return;
  // Anew each time: another batond has another socket.
  if (held_replies_.is_open()) held_replies_.close();
  held_replies_.assign(dup(held_->fd()));
  held_replies_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                           [this](const boost::system::error_code& error) {
                             awaiting_held_ = false;
                             held_overdue_.cancel();
                             if (error) return;
                             held_->TakeReplies();
                             AwaitHeld();
                           });
  held_overdue_.expires_after(std::chrono::milliseconds(held_->timeout_ms()));
  held_overdue_.async_wait([this](const boost::system::error_code& error) {
    if (!error)
      TellNotHeld(0, absl::StrCat("it has not answered for ", held_->timeout_ms(), " ms"));
  });
}

// `worker_id`: 0: of whoever was forked last.
void NativeWorkers::TellNotHeld(uint64_t worker_id, std::string_view why) {
  const std::string who =
      worker_id == 0 ? "the latest workers" : absl::StrCat("worker ", worker_id);
  events_.Add("not_held",
              absl::StrCat("the process of ", who, " is not held by batond: ", std::string(why)),
              UnixMicroseconds(), worker_id, -1, -1);
}

// ---------------------------------------------------------------- ends

void NativeWorkers::OnEnded(pid_t pid) {
  const auto found = processes_.find(pid);
  const Process& process = *found->second;
  const std::string how =
      process.on_trial ? "ended" : ReapProgram(found->second->pidfd.native_handle());
  const uint64_t forked_ns = process.forked_ns;
  events_.Add("native_worker_ended",
              absl::StrCat("worker ", process.worker_id, " (pid ", pid, ") ", how),
              UnixMicroseconds(), process.worker_id, -1, -1);
  processes_.erase(found);
  engine_.Turn();  // it may have committed just before
  const bool served = engine_.last_served_ns() >= forked_ns;
  pause_length_.NoteEnd(MonotonicNanoseconds() - forked_ns, served, policies_.policy());
  StartLater();
}

// ---------------------------------------------------------------- upgrades

absl::Status NativeWorkers::Check(const std::string& path) const {
  return CheckProgramPath(path, "a shared object, which native services are upgraded to");
}

void NativeWorkers::Read(pid_t, uint32_t uid, uint32_t gid, ProgramDone done) {
  internal::Program program;
  program.set_path(program_.object);
  for (const std::string& argument : program_.arguments) program.add_arguments(argument);
  program.set_uid(uid);
  program.set_gid(gid);
  done(std::move(program));
}

NativeProgram NativeWorkers::Native(const internal::Program& program) const {
  NativeProgram native = program_;
  native.object = program.path();
  native.arguments.assign(program.arguments().begin(), program.arguments().end());
  return native;
}

absl::StatusOr<StartedProgram> NativeWorkers::Start(const internal::Program& program) {
  return Fork(Native(program), /*on_trial=*/true);
}

// Also those that were forked in the place of others while the new ones were watched.
void NativeWorkers::OnServing(const internal::Program& program) {
  program_ = Native(program);
  for (const auto& [pid, process] : processes_) {
    if (!(process->program == program_)) End(*process);
  }
  KeepRunning();
}

// A worker that has not attached cannot be asked to end, so it is killed.
void NativeWorkers::End(Process& process) {
  if (!sessions_.IsAttached(process.worker_id)) {
    syscall(SYS_pidfd_send_signal, process.pidfd.native_handle(), SIGKILL, nullptr, 0);
    return;
  }
  sessions_.AskToStop(process.worker_id);
  process.overdue.expires_after(stop_timeout());
  process.overdue.async_wait(
      [this, id = process.worker_id](const boost::system::error_code& error) {
        if (error) return;
        (void)sessions_.Kill(
            id, absl::StrCat("it was asked to end ", stop_timeout().count(), " ms ago"));
      });
}

void NativeWorkers::StartLater() {
  if (std::exchange(pausing_, true)) return;
  pause_.expires_after(pause_length_.length());
  pause_.async_wait([this](const boost::system::error_code& error) {
    pausing_ = false;
    if (!error) KeepRunning();
  });
}

}  // namespace baton::keeper
