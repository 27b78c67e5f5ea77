#include "tests/harness/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "lib/base/status.h"
#include "tests/harness/file_content.h"
#include "tests/harness/wait_until.h"

namespace baton::harness {

std::vector<pid_t> ChildrenOf(pid_t process) {
  std::vector<pid_t> children;
  std::error_code error;
  const std::string threads = absl::StrCat("/proc/", process, "/task");
  for (const auto& thread : std::filesystem::directory_iterator(threads, error)) {
    std::ifstream file(thread.path() / "children");
    for (pid_t child = 0; file >> child;) children.push_back(child);
  }
  return children;
}

std::string StatusOf(pid_t process, const std::string& field) {
  std::ifstream file(absl::StrCat("/proc/", process, "/status"));
  for (std::string line; std::getline(file, line);) {
    if (!absl::StartsWith(line, field + ":")) continue;
    return std::string(absl::StripAsciiWhitespace(line.substr(field.size() + 1)));
  }
  return "";
}

bool IsGone(pid_t process) {
  const std::string state = StatusOf(process, "State");
  return state.empty() || state[0] == 'Z' || state[0] == 'X';
}

size_t DescriptorsOf(pid_t process) {
  std::error_code error;
  const std::filesystem::directory_iterator open(absl::StrCat("/proc/", process, "/fd"), error);
  return error ? 0 : static_cast<size_t>(std::distance(begin(open), end(open)));
}

pid_t NicOf(pid_t keeper) {
  for (const pid_t child : ChildrenOf(keeper)) {
    if (StatusOf(child, "Name") == "baton-nic") return child;
  }
  return 0;
}

pid_t TwinOf(pid_t driver) {
  for (const pid_t child : ChildrenOf(driver)) {
    if (StatusOf(child, "Name") == "baton-twin" && !IsGone(child)) return child;
  }
  return 0;
}

// A twin has its original's name at first.
void KillUnfollowed(pid_t driver) {
  (void)kill(driver, SIGSTOP);  // else it would fork another twin
  for (const pid_t child : ChildrenOf(driver)) {
    const std::string name = StatusOf(child, "Name");
    if (name == "baton-twin" || name == "baton-driver") (void)kill(child, SIGKILL);
  }
  (void)kill(driver, SIGKILL);
}

namespace {

using Clock = std::chrono::steady_clock;

int MillisecondsUntil(Clock::time_point deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 1'000'000'000));
}

// Readable or hung up before `deadline`.
bool WaitReadable(int fd, Clock::time_point deadline) {
  while (true) {
    pollfd event = {fd, POLLIN, 0};
    const int count = poll(&event, 1, MillisecondsUntil(deadline));
    if (count > 0) return true;
    if (count == 0) return false;
  }
}

struct Image {
  int signal_at_our_end = SIGKILL;
  bool logs_output = false;
  std::vector<std::string> strings;
  std::vector<char*> arguments;
  std::vector<char*> environment;
};

// All that the child needs, made before the fork: after it only async-signal-safe calls are
// allowed.
Image MakeImage(const ChildOptions& options) {
  Image image;
  image.strings.push_back(options.program);
  for (const std::string& argument : options.arguments) image.strings.push_back(argument);
  const size_t arguments = image.strings.size();
  for (const auto& [name, value] : options.environment) {
    image.strings.push_back(absl::StrCat(name, "=", value));
  }
  for (size_t i = 0; i < image.strings.size(); ++i) {
    (i < arguments ? image.arguments : image.environment).push_back(image.strings[i].data());
  }
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view ours = *variable;
    const bool replaced = std::any_of(
        options.environment.begin(), options.environment.end(),
        [&](const auto& other) { return ours.substr(0, ours.find('=')) == other.first; });
    if (!replaced) image.environment.push_back(*variable);
  }
  image.signal_at_our_end = options.signal_at_our_end;
  image.logs_output = options.logs_output;
  image.arguments.push_back(nullptr);
  image.environment.push_back(nullptr);
  return image;
}

[[noreturn]] void RunChild(Image& image, int input, int output, int log, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, image.signal_at_our_end);
  if (getppid() != parent) _exit(127);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  dup2(input, STDIN_FILENO);
  dup2(image.logs_output ? log : output, STDOUT_FILENO);
  signal(SIGPIPE, SIG_DFL);  // Start() ignores it
  dup2(log, STDERR_FILENO);
  execve(image.arguments[0], image.arguments.data(), image.environment.data());
  _exit(127);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ChildProcess>> ChildProcess::Start(const ChildOptions& options) {
  int input[2], output[2];
  if (pipe2(input, O_CLOEXEC) != 0) return ErrnoStatus(errno, "cannot make a pipe");
  FileDescriptor input_read(input[0]), input_write(input[1]);
  if (pipe2(output, O_CLOEXEC) != 0) return ErrnoStatus(errno, "cannot make a pipe");
  FileDescriptor output_read(output[0]), output_write(output[1]);
  const std::string log_path = options.log_path.empty() ? "/dev/null" : options.log_path;
  FileDescriptor log(open(log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  if (!log) return ErrnoStatus(errno, absl::StrCat("cannot write ", log_path));
  if (access(options.program.c_str(), X_OK) != 0) {
    return ErrnoStatus(errno, absl::StrCat("cannot start ", options.program));
  }
  Image image = MakeImage(options);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) RunChild(image, input_read.get(), output_write.get(), log.get(), parent);
  if (pid < 0) return ErrnoStatus(errno, absl::StrCat("cannot start ", options.program));

  std::unique_ptr<ChildProcess> child(new ChildProcess());
  child->name_ = options.program.substr(options.program.rfind('/') + 1);
  child->log_path_ = log_path;
  child->pid_ = pid;
  child->pidfd_ = FileDescriptor(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  child->input_ = std::move(input_write);
  child->output_ = std::move(output_read);
  if (!child->pidfd_) return ErrnoStatus(errno, "cannot open a pidfd");
  signal(SIGPIPE, SIG_IGN);  // a child that has gone is an error of WriteLine
  return child;
}

ChildProcess::~ChildProcess() {
  if (pid_ > 0 && !reaped_) {
    if (pidfd_) syscall(SYS_pidfd_send_signal, pidfd_.get(), SIGKILL, nullptr, 0);
    waitpid(pid_, nullptr, 0);
  }
}

pid_t ChildProcess::FindChild(const std::string& name) const {
  const std::string threads = absl::StrCat("/proc/", pid_, "/task");
  std::error_code error;
  for (const auto& thread : std::filesystem::directory_iterator(threads, error)) {
    std::ifstream children(thread.path() / "children");
    for (pid_t child = 0; children >> child;) {
      std::string stat;  // "pid (name) state …"
      std::getline(std::ifstream(absl::StrCat("/proc/", child, "/stat")), stat);
      const std::string begin = absl::StrCat(child, " (", name, ") ");
      if (stat.starts_with(begin) && stat.size() > begin.size() && stat[begin.size()] != 'Z') {
        return child;
      }
    }
  }
  return 0;
}

absl::Status ChildProcess::Signal(int signal) {
  if (reaped_) return absl::FailedPreconditionError(absl::StrCat(name_, " has ended"));
  if (syscall(SYS_pidfd_send_signal, pidfd_.get(), signal, nullptr, 0) != 0) {
    return ErrnoStatus(errno, absl::StrCat("cannot signal ", name_));
  }
  return absl::OkStatus();
}

bool ChildProcess::HasEnded() { return WaitEnd(std::chrono::milliseconds(0)).ok(); }

absl::StatusOr<int> ChildProcess::WaitEnd(std::chrono::milliseconds timeout) {
  if (reaped_) return status_;
  timeout = Patient(timeout);
  if (!WaitReadable(pidfd_.get(), Clock::now() + timeout)) {
    return absl::DeadlineExceededError(
        absl::StrCat(name_, " (pid ", pid_, ") still runs after ", timeout.count(), " ms"));
  }
  if (waitpid(pid_, &status_, 0) != pid_) return ErrnoStatus(errno, "cannot wait for a child");
  reaped_ = true;
  return status_;
}

absl::Status ChildProcess::Terminate(std::chrono::milliseconds timeout) {
  BATON_RETURN_IF_ERROR(Signal(SIGTERM));
  BATON_ASSIGN_OR_RETURN(const int status, WaitEnd(timeout));
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(name_, " did not end in order (wait status ", status,
                                          "); its log:\n", LogTail()));
}

absl::Status ChildProcess::Kill(std::chrono::milliseconds timeout) {
  BATON_RETURN_IF_ERROR(Signal(SIGKILL));
  return WaitEnd(timeout).status();
}

absl::StatusOr<std::string> ChildProcess::ReadLine(std::chrono::milliseconds timeout) {
  return ReadLineBefore(Clock::now() + Patient(timeout));
}

absl::StatusOr<std::string> ChildProcess::ReadLineBefore(Clock::time_point deadline) {
  while (true) {
    if (const size_t end = buffer_.find('\n'); end != std::string::npos) {
      std::string line = buffer_.substr(0, end);
      buffer_.erase(0, end + 1);
      return line;
    }
    if (!WaitReadable(output_.get(), deadline)) {
      return absl::DeadlineExceededError(
          absl::StrCat(name_, " did not say in time what it should; its log:\n", LogTail()));
    }
    char bytes[65536];
    const ssize_t count = read(output_.get(), bytes, sizeof(bytes));
    if (count == 0) {
      return absl::UnavailableError(
          absl::StrCat(name_, " has closed its output; its log:\n", LogTail()));
    }
    if (count > 0) buffer_.append(bytes, static_cast<size_t>(count));
  }
}

absl::StatusOr<std::string> ChildProcess::ReadLineWith(const std::string& beginning,
                                                       std::chrono::milliseconds timeout) {
  const Clock::time_point deadline = Clock::now() + Patient(timeout);
  while (true) {
    BATON_ASSIGN_OR_RETURN(std::string line, ReadLineBefore(deadline));
    if (line.starts_with(beginning)) return line;
  }
}

absl::Status ChildProcess::WriteLine(const std::string& line) {
  const std::string bytes = line + "\n";
  if (write(input_.get(), bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size())) {
    return ErrnoStatus(errno,
                       absl::StrCat(name_, " does not take commands; its log:\n", LogTail()));
  }
  return absl::OkStatus();
}

std::string ChildProcess::LogTail(size_t bytes) const {
  const std::string log = ReadFile(log_path_);
  return log.size() <= bytes ? log : "…" + log.substr(log.size() - bytes);
}

}  // namespace baton::harness
