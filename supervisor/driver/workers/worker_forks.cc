#include "supervisor/driver/workers/worker_forks.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "supervisor/driver/workers/spawn_plan.h"

namespace baton::driver_process {
namespace {

constexpr int kOutputBytes = 1 << 20;  // that the pipe holds while the driver does not read

// Native workers drive their queues themselves, so they must not wait for a reader: output that
// does not fit is lost. The larger size is for times when the driver is busy. The kernel may refuse
// it.
absl::StatusOr<Pipe> MakeOutput() {
  BATON_ASSIGN_OR_RETURN(Pipe output, MakePipe(O_NONBLOCK));
  (void)fcntl(output.writing.get(), F_SETPIPE_SZ, kOutputBytes);
  return output;
}

}  // namespace

absl::StatusOr<std::unique_ptr<WorkerForks>> WorkerForks::Create(NativeEngine& engine,
                                                                 const v1::NativeConfig& native,
                                                                 FileDescriptor presence) {
  BATON_ASSIGN_OR_RETURN(Pipe lifeline, MakePipe());
  BATON_ASSIGN_OR_RETURN(Pipe output, MakeOutput());
  return std::unique_ptr<WorkerForks>(
      new WorkerForks(engine, native, std::move(lifeline), std::move(presence), std::move(output)));
}

WorkerForks::WorkerForks(NativeEngine& engine, const v1::NativeConfig& native, Pipe lifeline,
                         FileDescriptor presence, Pipe output)
    : engine_(engine),
      native_(native),
      slots_(engine.arena().shape().workers),
      lifeline_(std::move(lifeline)),
      presence_(std::move(presence)),
      output_(std::move(output)) {}

WorkerForks::~WorkerForks() {
  for (const Process& process : processes_) {
    (void)SendSignal(process.pidfd.get(), SIGKILL);
  }
}

// ---------------------------------------------------------------- forks

absl::Status WorkerForks::Fork(const internal::ForkWorker& order, internal::Forked* forked,
                               std::vector<FileDescriptor>* sent) {
  const uint32_t slot = order.place().slot();
  if (slot >= slots_) return absl::InvalidArgumentError("fork_worker: no such slot");
  for (const Process& former : processes_) {
    if (former.facts.place().slot() != slot || HasEnded(former)) continue;
    return absl::UnavailableError(absl::StrCat("process ", former.facts.pid(), " of worker ",
                                               former.facts.place().id(),
                                               " had the slot, and still ends"));
  }
  NativeProgram program;
  program.object = order.program().path();
  program.arguments.assign(order.program().arguments().begin(), order.program().arguments().end());
  if (native_.has_uid()) program.uid = native_.uid();
  if (native_.has_gid()) program.gid = native_.gid();
  NativeInheritance inheritance = engine_.InheritanceOf(slot, order.place().id());
  inheritance.lifeline = lifeline_.reading.get();
  inheritance.presence = presence_.get();
  BATON_ASSIGN_OR_RETURN(ForkedWorker worker,
                         ForkWorker(program, std::move(inheritance), output_.writing.get()));
  Process& process = processes_.emplace_back();
  process.facts.set_pid(worker.process.pid);
  process.facts.set_uid(program.uid.value_or(geteuid()));
  process.facts.set_gid(program.gid.value_or(getegid()));
  *process.facts.mutable_place() = order.place();
  *process.facts.mutable_program() = order.program();
  process.pidfd = std::move(worker.process.pidfd);
  process.session = std::move(worker.session);
  process.forked_ns = MonotonicNanoseconds();
  const absl::Status given = Give(process, forked, sent);
  if (!given.ok()) (void)SendSignal(process.pidfd.get(), SIGKILL);  // no keeper would know of it
  ForgetOldest();
  return given;
}

absl::Status WorkerForks::Give(const Process& process, internal::Forked* forked,
                               std::vector<FileDescriptor>* sent) {
  for (const FileDescriptor* const own : {&process.pidfd, &process.session}) {
    if (!*own) continue;
    FileDescriptor copy = CopyOf(own->get());
    if (!copy) return ErrnoStatus(errno, "a worker's descriptor for the keeper (RLIMIT_NOFILE)");
    sent->push_back(std::move(copy));
  }
  *forked = process.facts;
  return absl::OkStatus();
}

void WorkerForks::NoteAttached(uint64_t worker_id) {
  for (Process& process : processes_) {
    if (process.facts.place().id() != worker_id) continue;
    process.facts.set_attached(true);
    process.session.Reset();
  }
}

absl::Status WorkerForks::Next(pid_t pid, internal::Forked* forked,
                               std::vector<FileDescriptor>* sent) const {
  // No other process has the pid of one that is not reaped.
  const auto is_it = [pid](const Process& one) {
    return one.facts.pid() == pid && one.end.how().empty();
  };
  auto next = processes_.begin();
  if (pid != 0) {
    next = std::find_if(next, processes_.end(), is_it);
    if (next != processes_.end()) ++next;
  }
  next = std::find_if(next, processes_.end(),
                      [](const Process& one) { return one.end.how().empty(); });
  return next == processes_.end() ? absl::OkStatus() : Give(*next, forked, sent);
}

// Keepers only ask how the latest processes ended.
void WorkerForks::ForgetOldest() {
  while (processes_.size() > 2 * size_t{slots_}) {
    const auto oldest = std::find_if(processes_.begin(), processes_.end(), HasEnded);
    if (oldest == processes_.end()) return;
    (void)ReapProgram(oldest->pidfd.get());
    processes_.erase(oldest);
  }
}

bool WorkerForks::HasEnded(const Process& process) {
  pollfd end = {process.pidfd.get(), POLLIN, 0};
  return poll(&end, 1, 0) > 0;
}

internal::Reaped WorkerForks::Reap(pid_t pid) {
  const auto process = std::find_if(processes_.rbegin(), processes_.rend(),
                                    [pid](const Process& one) { return one.facts.pid() == pid; });
  if (process == processes_.rend()) {
    internal::Reaped unknown;
    unknown.set_how("ended");
    return unknown;
  }
  if (process->end.how().empty()) {
    const std::string how = ReapProgram(process->pidfd.get());
    if (how.empty()) return process->end;
    engine_.Turn();  // the worker may have committed just before its end
    process->end.set_how(how);
    process->end.set_lived_ns(MonotonicNanoseconds() - process->forked_ns);
    process->end.set_served(engine_.succession().last_served_ns() >= process->forked_ns);
  }
  return process->end;
}

void WorkerForks::Turn() { (void)lines_.ReadSome(output_.reading.get(), MonotonicNanoseconds()); }

std::vector<int> WorkerForks::descriptors() const { return {output_.reading.get()}; }

}  // namespace baton::driver_process
