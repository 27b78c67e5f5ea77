#include "supervisor/driver/workers/worker_forks.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "lib/arena/atomic_access.h"
#include "lib/base/clock.h"
#include "lib/base/program_start.h"
#include "lib/base/release_note.h"
#include "lib/base/status.h"
#include "supervisor/driver/workers/spawn_plan.h"

namespace baton::driver_process {
namespace {

// A worker that has not attached after so long hangs.
constexpr std::chrono::seconds kToAttach(20);
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
                                                                 FileDescriptor presence,
                                                                 ReplaceableProgram code,
                                                                 Tell tell) {
  std::unique_ptr<WorkerForks> forks(
      new WorkerForks(engine, native, std::move(presence), std::move(code), std::move(tell)));
  BATON_RETURN_IF_ERROR(forks->Open());
  return forks;
}

WorkerForks::WorkerForks(NativeEngine& engine, const v1::NativeConfig& native,
                         FileDescriptor presence, ReplaceableProgram code, Tell tell)
    : engine_(engine),
      native_(native),
      slots_(engine.arena().shape().workers),
      presence_(std::move(presence)),
      code_(std::move(code)),
      tell_(std::move(tell)) {}

absl::Status WorkerForks::Open() {
  BATON_ASSIGN_OR_RETURN(lifeline_, MakePipe());
  BATON_ASSIGN_OR_RETURN(output_, MakeOutput());
  // A file that a package puts in its place from now on is not used.
  BATON_RETURN_IF_ERROR(code_.Proven().status());
  ReadCodeRelease();
  return absl::OkStatus();
}

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
  BATON_ASSIGN_OR_RETURN(const ProgramFile code, code_.ToRun());
  if (!code_.on_probation()) (void)LoadDriverCode(code.descriptor());
  BATON_ASSIGN_OR_RETURN(ForkedWorker worker,
                         ForkWorker(program, code, std::move(inheritance), output_.writing.get()));
  Process& process = processes_.emplace_back();
  process.facts.set_pid(worker.process.pid);
  process.facts.set_uid(program.uid.value_or(geteuid()));
  process.facts.set_gid(program.gid.value_or(getegid()));
  *process.facts.mutable_place() = order.place();
  *process.facts.mutable_program() = order.program();
  process.pidfd = std::move(worker.process.pidfd);
  process.session = std::move(worker.session);
  process.forked_ns = MonotonicNanoseconds();
  process.has_next_code = code_.on_probation();
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
    JudgeCode(*process);
  }
  return process->end;
}

void WorkerForks::Turn() {
  (void)lines_.ReadSome(output_.reading.get(), MonotonicNanoseconds());
  if (code_.on_probation()) LookAtProbation();
}

// ---------------------------------------------------------------- the code of drivers

absl::Status WorkerForks::ReplaceCode(std::chrono::milliseconds probation) {
  BATON_RETURN_IF_ERROR(code_.Replace(probation));
  for (Process& process : processes_) process.has_next_code = false;
  code_given_up_.clear();
  ReadCodeRelease();
  if (!code_release_.empty()) return absl::OkStatus();
  code_.GiveUp();
  ReadCodeRelease();
  return absl::FailedPreconditionError(
      absl::StrCat(code_.path(), " tells no release, so it is no code of drivers"));
}

// A worker that hangs has the code for longer than it lives, and proves nothing.
void WorkerForks::LookAtProbation() {
  const uint64_t now = MonotonicNanoseconds();
  const auto probation_ns =
      static_cast<uint64_t>(std::chrono::nanoseconds(code_.probation()).count());
  for (Process& process : processes_) {
    if (!process.has_next_code || !process.facts.attached() || HasEnded(process)) continue;
    const uint64_t beat =
        arena::LoadRelaxed(engine_.arena().worker(process.facts.place().slot()).heartbeat);
    if (std::exchange(process.heartbeat, beat) != beat) process.beat_ns = now;
    if (now - process.forked_ns < probation_ns || now - process.beat_ns > probation_ns / 2)
      continue;
    code_.Prove();
    code_changed_ = true;
    return tell_("driver_code_proven",
                 absl::StrCat("the new code of native workers, of release ", code_release_,
                              ", stays: process ", process.facts.pid(), " has lived with it"));
  }
}

// The worker's own object may be why it has ended. Then the code can be replaced again. What
// keepers end with a signal says nothing, but for a worker that has not attached in all that time.
void WorkerForks::JudgeCode(const Process& ended) {
  if (!code_.on_probation() || !ended.has_next_code) return;
  const std::string& how = ended.end.how();
  const auto age = std::chrono::nanoseconds(MonotonicNanoseconds() - ended.forked_ns);
  const bool was_ended =
      how == "ended" || absl::StrContains(how, "signal 9 ") || absl::StrContains(how, "signal 15 ");
  const bool is_to_blame =
      ended.facts.attached() ? !was_ended && how != "ended with status 0" && age < code_.probation()
                             : !was_ended || age >= kToAttach;
  if (!is_to_blame) return;
  code_.GiveUp();
  code_changed_ = true;
  ReadCodeRelease();
  code_given_up_ = absl::StrCat(
      "the new code of drivers is given up, because a worker that had it (process ",
      ended.facts.pid(), ") ", how, ended.facts.attached() ? " soon" : " before it had attached",
      ": workers that start have the code before it");
  tell_("driver_code_given_up", code_given_up_);
}

void WorkerForks::ReadCodeRelease() {
  code_release_.clear();
  const absl::StatusOr<ProgramFile> code = code_.ToRun();
  if (!code.ok()) return;
  const FileDescriptor file(open(OpenFilePath(code->descriptor()).c_str(), O_RDONLY | O_CLOEXEC));
  if (file) code_release_ = ReleaseOfFile(file.get()).value_or("");
}

std::vector<int> WorkerForks::descriptors() const { return {output_.reading.get()}; }

}  // namespace baton::driver_process
