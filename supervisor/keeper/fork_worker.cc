#include "supervisor/keeper/fork_worker.h"

#include <dirent.h>
#include <grp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/errno_status.h"
#include "lib/base/status_macros.h"
#include "lib/base/status_text.h"
#include "lib/native/native_object.h"
#include "lib/native/prefault.h"

namespace baton::keeper {
namespace {

NativeDriver* g_driver = nullptr;

absl::StatusOr<std::vector<int>> Numbers(const char* directory) {
  std::unique_ptr<DIR, int (*)(DIR*)> entries(opendir(directory), closedir);
  if (!entries) return ErrnoStatus(errno, absl::StrCat("opendir of ", directory));
  std::vector<int> numbers;
  while (const dirent* const entry = readdir(entries.get())) {
    const int number = std::atoi(entry->d_name);
    if (entry->d_name[0] != '.' && number != dirfd(entries.get())) numbers.push_back(number);
  }
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

void CloseAllBut(std::vector<int> kept) {
  kept.insert(kept.end(), {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO});
  std::sort(kept.begin(), kept.end());
  unsigned int first = 0;
  for (const int fd : kept) {
    const auto number = static_cast<unsigned int>(fd);
    if (number > first) (void)syscall(SYS_close_range, first, number - 1, 0);
    first = std::max(first, number + 1);
  }
  (void)syscall(SYS_close_range, first, ~0u, 0);
}

// As a program starts: nothing that the keeper handles or blocks.
void ResetSignals() {
  for (int signal = 1; signal < NSIG; ++signal) {
    struct sigaction current = {};
    if (sigaction(signal, nullptr, &current) == 0 && current.sa_handler != SIG_DFL) {
      current.sa_handler = SIG_DFL;
      current.sa_flags = 0;
      (void)sigaction(signal, &current, nullptr);
    }
  }
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
}

absl::Status TakeIdentity(const NativeProgram& program, pid_t keeper) {
  if (program.gid) {
    if (setgroups(0, nullptr) != 0) return ErrnoStatus(errno, "setgroups");
    if (setresgid(*program.gid, *program.gid, *program.gid) != 0) {
      return ErrnoStatus(errno, absl::StrCat("cannot become gid ", *program.gid));
    }
  }
  if (program.uid && setresuid(*program.uid, *program.uid, *program.uid) != 0) {
    return ErrnoStatus(errno, absl::StrCat("cannot become uid ", *program.uid));
  }
  // Nobody takes the connections over from a keeper that dies, and with it they are gone. (Not
  // before the identity is taken on: that would forget it.)
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != keeper) _exit(0);
  // Not by an executable with other rights, either.
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return ErrnoStatus(errno, "no_new_privs");
  return absl::OkStatus();
}

// Returns only with an error.
absl::Status BecomeWorker(const NativeProgram& program, pid_t keeper,
                          NativeInheritance inheritance) {
  BATON_RETURN_IF_ERROR(TakeIdentity(program, keeper));
  BATON_RETURN_IF_ERROR(inheritance.device->AfterFork());
  // For as long as the process lives.
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<NativeDriver> driver,
                         NativeDriver::Create(std::move(inheritance)));
  g_driver = driver.release();
  BATON_ASSIGN_OR_RETURN(const native::NativeObject object,
                         native::NativeObject::Load(program.object));
  // What the page faults of a heir cost, a peer waits for.
  native::Prefault();
  object.Run(program.arguments);
}

[[noreturn]] void RunChild(const NativeProgram& program, pid_t keeper,
                           NativeInheritance inheritance, std::vector<int> kept) {
  setsid();
  prctl(PR_SET_NAME, "baton-native");
  ResetSignals();
  kept.push_back(inheritance.session);
  kept.push_back(inheritance.news);
  CloseAllBut(std::move(kept));
  const int news = inheritance.news;
  const absl::Status status = BecomeWorker(program, keeper, std::move(inheritance));
  const std::string line = NewsLine(kWorkerFailed, -1, -1, MessageOf(status));
  (void)send(news, line.data(), line.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  _exit(127);
}

}  // namespace

BatonNativeHost* HostOfThisProcess() { return g_driver == nullptr ? nullptr : g_driver->host(); }

absl::StatusOr<std::vector<int>> OpenDescriptors() { return Numbers("/proc/self/fd"); }

absl::StatusOr<ForkedWorker> ForkWorker(const NativeProgram& program, NativeInheritance inheritance,
                                        const std::vector<int>& kept_descriptors) {
  BATON_ASSIGN_OR_RETURN(const std::vector<int> threads, Numbers("/proc/self/task"));
  if (threads.size() != 1) {
    return absl::FailedPreconditionError(
        absl::StrCat("this keeper has ", threads.size(), " threads: a native one must have one"));
  }
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) {
    return ErrnoStatus(errno, "a socket pair for the worker (see RLIMIT_NOFILE)");
  }
  ForkedWorker worker;
  worker.session.Reset(pair[0]);
  const FileDescriptor child_end(pair[1]);
  inheritance.session = child_end.get();
  const pid_t keeper = getpid();
  worker.pid = fork();
  if (worker.pid < 0) return ErrnoStatus(errno, "fork (see RLIMIT_NPROC, pids.max)");
  if (worker.pid == 0) RunChild(program, keeper, std::move(inheritance), kept_descriptors);
  worker.pidfd.Reset(static_cast<int>(syscall(SYS_pidfd_open, worker.pid, 0)));
  if (!worker.pidfd) {
    const absl::Status status = ErrnoStatus(errno, "pidfd_open (see RLIMIT_NOFILE)");
    kill(worker.pid, SIGKILL);
    waitpid(worker.pid, nullptr, 0);
    return status;
  }
  return worker;
}

}  // namespace baton::keeper
