#include "supervisor/batond/spawn.h"

#include <fcntl.h>
#include <grp.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "lib/base/status.h"
#include "supervisor/batond/open_within.h"

namespace baton {

absl::StatusOr<ProgramFile> ProgramFile::Open(const std::string& path, HelperPrograms helpers) {
  ProgramFile program;
  program.file_ = std::make_shared<FileDescriptor>(open(path.c_str(), O_PATH | O_CLOEXEC));
  struct stat file = {};
  if (!*program.file_ || fstat(program.file_->get(), &file) != 0) {
    return ErrnoStatus(errno, absl::StrCat("cannot run ", path));
  }
  program.device_ = file.st_dev;
  program.inode_ = file.st_ino;
  program.changed_ns_ = int64_t{file.st_mtim.tv_sec} * 1'000'000'000 + file.st_mtim.tv_nsec;
  // Not beside `path`, which may be a symbolic link.
  const std::string place = PlaceOfOpenFile(program.descriptor());
  for (const HelperProgram& helper : helpers) {
    absl::StatusOr<ProgramFile> beside =
        Open(absl::StrCat(place.substr(0, place.rfind('/') + 1), helper.name));
    if (beside.ok()) program.helpers_.push_back({helper.variable, *std::move(beside)});
  }
  return program;
}

// Not /proc/self, because a child closes the descriptor before it enters the program.
std::string ProgramFile::Path() const {
  return absl::StrCat("/proc/", getpid(), "/fd/", descriptor());
}

void ProgramFile::GiveHelpers(InheritedDescriptors* inherited) const {
  for (const Helper& helper : helpers_) {
    inherited->emplace_back(helper.variable, helper.file.descriptor());
  }
}

bool ProgramFile::operator==(const ProgramFile& other) const {
  return device_ == other.device_ && inode_ == other.inode_ && changed_ns_ == other.changed_ns_ &&
         helpers_ == other.helpers_;
}

std::string DescribeGivenUp(const std::string& program, const std::string& why) {
  return absl::StrCat("the new program ", program, " is given up, because ", why,
                      ": the program before it runs");
}

absl::StatusOr<ProgramFile> ReplaceableProgram::ToRun() {
  return on_probation_ ? *on_probation_ : Proven();
}

absl::StatusOr<ProgramFile> ReplaceableProgram::Proven() {
  if (!file_) {
    BATON_ASSIGN_OR_RETURN(file_, ProgramFile::Open(first_.empty() ? path_ : first_, helpers_));
  }
  return *file_;
}

absl::Status ReplaceableProgram::Replace(std::chrono::milliseconds probation,
                                         std::optional<ProgramFile> running) {
  BATON_ASSIGN_OR_RETURN(ProgramFile found, ProgramFile::Open(path_, helpers_));
  if (running) file_ = std::move(running);
  on_probation_.reset();
  probation_ = std::max(probation, kLeastProbation);
  if (!file_ || !(*file_ == found)) on_probation_ = std::move(found);
  return absl::OkStatus();
}

void ReplaceableProgram::Prove() {
  if (on_probation_) file_ = std::exchange(on_probation_, std::nullopt);
}

ReplaceableProgram ReplaceableCode(const std::string& opened) {
  const int file = OpenFileOf(opened);
  return ReplaceableProgram(file < 0 ? opened : PlaceOfOpenFile(file), {}, opened);
}

namespace {

using std::chrono::milliseconds;

constexpr milliseconds kDeathTimeout(1000);  // of a process that was killed

// Returns the caller's environment without what is for the caller alone, and with the descriptors
// of `request`.
std::vector<std::string> EnvironmentFor(const SpawnRequest& request) {
  std::vector<std::string> environment;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (!IsForOneProcess(*variable)) environment.emplace_back(*variable);
  }
  for (const auto& [name, descriptor] : request.descriptors) {
    environment.push_back(absl::StrCat(name, "=", descriptor));
  }
  return environment;
}

struct ChildPlan {
  const SpawnRequest& request;
  const char* program;  // path
  char* const* arguments;
  char* const* environment;
  const std::vector<int>& kept;  // descriptors that it needs or inherits, ascending
  int input;
  int error_pipe;
  pid_t parent;
};

void ResetSignals() {
  struct sigaction standard = {};
  standard.sa_handler = SIG_DFL;
  for (int signal = 1; signal < NSIG; ++signal) sigaction(signal, &standard, nullptr);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
}

bool BecomeUser(const ProgramUser& user) {
  return setgroups(0, nullptr) == 0 && setresgid(user.gid, user.gid, user.gid) == 0 &&
         setresuid(user.uid, user.uid, user.uid) == 0 &&
         prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0;
}

// Runs in the child and makes system calls only. Signals are still blocked, so none of the parent's
// handlers runs here and writes into what it shares with the parent.
[[noreturn]] void BecomeProgram(const ChildPlan& plan) {
  setpgid(0, 0);
  const SpawnRequest& request = plan.request;
  bool prepared = dup2(plan.input, STDIN_FILENO) >= 0 &&
                  (request.standard_error < 0 || dup2(request.standard_error, STDERR_FILENO) >= 0);
  if (request.pid_file >= 0) (void)WriteProcessNumber(request.pid_file);
  prepared = prepared && (!request.user || BecomeUser(*request.user));
  if (request.dies_with_us) {
    // After the change of user, because the kernel clears the request then.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != plan.parent) _exit(127);  // the parent died before the line above
  }
  CloseAllBut(plan.kept);  // entering a program may take for ever
  for (const auto& [name, descriptor] : request.descriptors) {
    prepared = prepared && fcntl(descriptor, F_SETFD, 0) == 0;
  }
  if (prepared) {
    ResetSignals();
    // By the descriptor, because another user may not follow a path through the parent's /proc. A
    // script's interpreter needs a path, though.
    if (request.file) {
      execveat(request.file->descriptor(), "", plan.arguments, plan.environment, AT_EMPTY_PATH);
    }
    if (!request.file || errno == ENOENT) execve(plan.program, plan.arguments, plan.environment);
  }
  const int error = errno;
  [[maybe_unused]] const ssize_t written = write(plan.error_pipe, &error, sizeof(error));
  _exit(127);
}

// The pipe closes when the program is entered; before that it carries the error number.
absl::Status WaitUntilEntered(int error_pipe, const std::string& program, milliseconds timeout) {
  if (!BecomesReadable(error_pipe, timeout)) {
    return absl::DeadlineExceededError(
        absl::StrCat("cannot run ", program, ": it was not entered within ", timeout.count(),
                     " ms: does the file system that it is on answer?"));
  }
  int error = 0;
  ssize_t got;
  do {
    got = read(error_pipe, &error, sizeof(error));
  } while (got < 0 && errno == EINTR);
  if (got == sizeof(error)) return ErrnoStatus(error, absl::StrCat("cannot run ", program));
  return absl::OkStatus();
}

}  // namespace

bool WriteProcessNumber(int file) {
  char text[16];
  char* const end = std::to_chars(text, std::end(text) - 1, getpid()).ptr;
  *end = '\n';
  const ssize_t length = end + 1 - text;
  return ftruncate(file, 0) == 0 && pwrite(file, text, static_cast<size_t>(length), 0) == length;
}

std::string DescribeEnd(const siginfo_t& end) {
  if (end.si_code == CLD_EXITED) return absl::StrCat("ended with exit code ", end.si_status);
  return absl::StrCat("was killed by signal ", end.si_status, " (", strsignal(end.si_status), ")",
                      end.si_code == CLD_DUMPED ? ", core dumped" : "");
}

absl::StatusOr<SpawnedProcess> Spawn(const SpawnRequest& request) {
  BATON_RETURN_IF_ERROR(MayWaitFor(request.program));
  BATON_ASSIGN_OR_RETURN(const FileDescriptor input, MemoryFileWith(request.input));
  BATON_ASSIGN_OR_RETURN(Pipe errors, MakePipe());

  std::vector<std::string> arguments = {request.program};
  arguments.insert(arguments.end(), request.arguments.begin(), request.arguments.end());
  std::vector<std::string> environment = EnvironmentFor(request);
  const std::vector<char*> argument_pointers = PointersTo(arguments);
  const std::vector<char*> environment_pointers = PointersTo(environment);
  std::vector<int> kept = {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO, errors.writing.get()};
  for (const auto& [name, descriptor] : request.descriptors) kept.push_back(descriptor);
  const std::string path = request.file ? request.file->Path() : request.program;
  if (request.file) kept.push_back(request.file->descriptor());
  std::sort(kept.begin(), kept.end());

  const ChildPlan plan = {
      request, path.c_str(), argument_pointers.data(), environment_pointers.data(),
      kept,    input.get(),  errors.writing.get(),     getpid()};
  SpawnedProcess child;
  child.pid = ForkToWait([&plan] { BecomeProgram(plan); });
  if (child.pid < 0) return ErrnoStatus(errno, absl::StrCat("cannot fork for ", request.program));
  errors.writing.Reset();
  absl::StatusOr<FileDescriptor> pidfd = OpenPidfd(child.pid);
  absl::Status status = pidfd.status();
  if (pidfd.ok()) {
    child.pidfd = *std::move(pidfd);
    status = WaitUntilEntered(errors.reading.get(), request.program, request.enter_timeout);
  }
  if (!status.ok()) {
    KillAndReap(child.pid, child.pidfd.get(), kDeathTimeout, request.program);
    return status;
  }
  return child;
}

}  // namespace baton
