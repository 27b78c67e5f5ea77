#include "supervisor/batond/own_program.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "lib/base/file_descriptor.h"
#include "lib/base/program_start.h"
#include "lib/base/status.h"
#include "lib/channel/waits.h"
#include "spdlog/spdlog.h"
#include "supervisor/config/state_files.h"

namespace baton {
namespace {

// If a program on probation dies, a service manager starts batond again in less time.
constexpr time_t kProbationIsOverSeconds = 600;

// Returns the variable and removes it, so that no child inherits it.
std::string TakeVariable(const char* name) {
  const char* const value = std::getenv(name);
  std::string taken = value == nullptr ? "" : value;
  unsetenv(name);
  return taken;
}

absl::Status Copy(int from, int to) {
  struct stat info = {};
  if (fstat(from, &info) != 0) return ErrnoStatus(errno, "fstat of a program");
  for (off_t left = info.st_size; left > 0;) {
    const ssize_t copied = sendfile(to, from, nullptr, static_cast<size_t>(left));
    if (copied <= 0) return ErrnoStatus(copied == 0 ? EIO : errno, "copying a program");
    left -= copied;
  }
  return absl::OkStatus();
}

#ifndef MFD_EXEC
#define MFD_EXEC 0x0010U  // since Linux 6.3
#endif

// Returns an executable copy in memory. Files in the state directory may not be executable, as in
// /run.
absl::StatusOr<FileDescriptor> InMemory(const std::string& path) {
  const FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  FileDescriptor memory(memfd_create("batond", MFD_CLOEXEC | MFD_EXEC));
  if (!memory) memory.Reset(memfd_create("batond", MFD_CLOEXEC));
  if (!file || !memory) return ErrnoStatus(errno, path);
  BATON_RETURN_IF_ERROR(Copy(file.get(), memory.get()));
  return memory;
}

}  // namespace

OwnProgram::OwnProgram(int argc, char** argv)
    : path_(TakeVariable(kProgramVariable)),
      given_up_(TakeVariable(kGivenUpVariable)),
      former_end_(TakeVariable(kFormerEndVariable)),
      arguments_(argv, argv + argc),
      kept_(TakeVariable(kProbationVariable)) {
  on_probation_ = !kept_.empty();
  int64_t probation_ms = 0;
  if (absl::SimpleAtoi(TakeVariable(kProbationTimeVariable), &probation_ms)) {
    probation_ = std::max(probation_, std::chrono::milliseconds(probation_ms));
  }
  for (char** variable = environ; *variable != nullptr; ++variable) {
    environment_.emplace_back(*variable);
  }
  if (path_.empty()) path_ = OwnDirectory() + "/batond";
}

// The rename makes the file appear complete, or not at all.
absl::Status OwnProgram::Keep(const std::string& state_dir, std::chrono::milliseconds probation) {
  LeaveVariable(kProbationTimeVariable, absl::StrCat(probation.count()));
  // The former program, which has served, is kept already.
  if (on_probation_) return absl::OkStatus();
  const std::string path = FormerBatondPath(state_dir);
  const std::string unfinished = path + ".new";
  const FileDescriptor own(open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  const FileDescriptor file(
      open(unfinished.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0700));
  if (!own || !file) return ErrnoStatus(errno, absl::StrCat("cannot keep this program as ", path));
  if (absl::Status copied = Copy(own.get(), file.get()); !copied.ok()) {
    (void)unlink(unfinished.c_str());
    return copied;
  }
  // GoBackIfProbationFailed counts from there.
  const timespec begin = {.tv_sec = time(nullptr) + probation.count() / 1000, .tv_nsec = 0};
  const timespec times[2] = {begin, begin};
  if (futimens(file.get(), times) != 0) spdlog::warn("{}: {}", path, std::strerror(errno));
  if (rename(unfinished.c_str(), path.c_str()) != 0) {
    return ErrnoStatus(errno, absl::StrCat("cannot make ", path));
  }
  kept_ = path;
  return absl::OkStatus();
}

void OwnProgram::LeaveVariable(const std::string& name, const std::string& value) {
  std::erase_if(environment_,
                [&](const std::string& one) { return one.starts_with(absl::StrCat(name, "=")); });
  environment_.push_back(absl::StrCat(name, "=", value));
}

absl::Status OwnProgram::Replace() {
  LeaveVariable(kProbationVariable, kept_);
  execve(path_.c_str(), PointersTo(arguments_).data(), PointersTo(environment_).data());
  absl::Status status = ErrnoStatus(errno, absl::StrCat("cannot run ", path_));
  LeaveVariable(kProbationVariable, "");
  GoBack(std::string(status.message()));
  return status;
}

void OwnProgram::GoBackIfProbationFailed(const std::string& state_dir) {
  struct stat info = {};
  if (on_probation_ || stat(FormerBatondPath(state_dir).c_str(), &info) != 0) return;
  kept_ = FormerBatondPath(state_dir);
  // This is the former program, or batond was not started for long.
  if (!given_up_.empty() || time(nullptr) - info.st_mtime > kProbationIsOverSeconds) {
    return EndProbation();
  }
  GoBack("its process died before it had served for long");
}

// The former program removes the file once it runs.
void OwnProgram::GoBack(const std::string& why) {
  on_probation_ = false;
  const std::string given_up = DescribeGivenUp(path_, why);
  spdlog::error("{}", given_up);
  LeaveVariable(kGivenUpVariable, given_up);
  LeaveVariable(kProgramVariable, path_);
  const absl::StatusOr<FileDescriptor> former = InMemory(kept_);
  if (former.ok()) {
    fexecve(former->get(), PointersTo(arguments_).data(), PointersTo(environment_).data());
  }
  execve(kept_.c_str(), PointersTo(arguments_).data(), PointersTo(environment_).data());
  spdlog::error("the program before cannot be run: {}", std::strerror(errno));
  (void)unlink(kept_.c_str());
}

void OwnProgram::EndProbation() {
  if (kept_.empty()) return;
  (void)unlink(kept_.c_str());
  kept_.clear();
  if (std::exchange(on_probation_, false)) {
    spdlog::info("the probation of batond's new program is over: it stays");
  }
}

// ---------------------------------------------------------------- checking the other program

void ProgramCheck::Run(const OwnProgram& own, Done done) {
  if (done_) return done(absl::AbortedError("batond's program is being replaced already"));
  SpawnRequest request;
  request.program = program_ = own.path();
  request.arguments.assign(own.arguments().begin() + 1, own.arguments().end());
  request.arguments.emplace_back("--check");
  absl::StatusOr<SpawnedProcess> process = Spawn(request);
  if (!process.ok()) return done(process.status());
  process_ = *std::move(process);
  done_ = std::move(done);
  After(timer_, kTimeout, [this] {
    if (process_.pidfd) (void)SendSignal(process_.pidfd.get(), SIGKILL);
  });
  end_.assign(process_.pidfd.get());
  AwaitReadable(end_, [this] { OnEnd(); });
}

void ProgramCheck::OnEnd() {
  siginfo_t end = {};
  (void)waitid(P_PIDFD, static_cast<id_t>(process_.pidfd.get()), &end, WEXITED);
  Forget();
  const bool passed = end.si_code == CLD_EXITED && end.si_status == 0;
  std::exchange(done_, nullptr)(
      passed ? absl::OkStatus()
             : absl::FailedPreconditionError(absl::StrCat(
                   program_, " --check ", DescribeEnd(end),
                   ": it would not run with this command line and configuration. What it printed "
                   "is in batond's log")));
}

void ProgramCheck::Forget() {
  timer_.cancel();
  if (end_.is_open()) end_.release();
  process_ = SpawnedProcess();
}

}  // namespace baton
