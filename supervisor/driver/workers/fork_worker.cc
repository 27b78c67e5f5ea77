#include "supervisor/driver/workers/fork_worker.h"

#include <dirent.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "lib/base/memory_shortage.h"
#include "lib/base/status.h"
#include "lib/native/mappings.h"
#include "lib/native/native_object.h"
#include "supervisor/driver/native/lifeline.h"
#include "supervisor/driver/workers/confine.h"

namespace baton::driver_process {
namespace {

NativeDriver* g_driver = nullptr;

// Checks that there is one thread: a lock that another held would be held in the child for ever.
absl::Status CheckAlone() {
  std::unique_ptr<DIR, int (*)(DIR*)> threads(opendir("/proc/self/task"), closedir);
  if (!threads) return ErrnoStatus(errno, "opendir of /proc/self/task");
  int count = 0;
  while (const dirent* const entry = readdir(threads.get())) count += entry->d_name[0] != '.';
  if (count == 1) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("this driver has ", count, " threads: a native one must have one"));
}

// native_workers.md has the list.
std::vector<int> DescriptorsOf(const NativeInheritance& inheritance) {
  std::vector<int> descriptors = inheritance.device->ForkedDescriptors();
  descriptors.insert(descriptors.end(), inheritance.wakes.begin(), inheritance.wakes.end());
  descriptors.insert(descriptors.end(),
                     {inheritance.session, inheritance.driver_wake, inheritance.news,
                      inheritance.lifeline, inheritance.presence});
  return descriptors;
}

// Restores the handlers and the mask that a program starts with, except that SIGPIPE stays ignored:
// write(2) fails when the reader of its output has gone.
void ResetSignals() {
  for (int signal = 1; signal < NSIG; ++signal) {
    struct sigaction current = {};
    if (sigaction(signal, nullptr, &current) == 0 && current.sa_handler != SIG_DFL) {
      current.sa_handler = SIG_DFL;
      current.sa_flags = 0;
      (void)sigaction(signal, &current, nullptr);
    }
  }
  (void)signal(SIGPIPE, SIG_IGN);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
}

// Returns only with an error.
absl::Status BecomeWorker(const NativeProgram& program, NativeInheritance inheritance, int output) {
  if (dup2(output, STDERR_FILENO) < 0) return ErrnoStatus(errno, "standard error");
  inheritance.arena->KeepFromChildren();
  BATON_RETURN_IF_ERROR(inheritance.device->AfterFork());
  BATON_ASSIGN_OR_RETURN(FileDescriptor lifeline, OpenOwnEnd(inheritance.lifeline));
  inheritance.lifeline = lifeline.Release();  // stays open as long as the process lives
  BATON_RETURN_IF_ERROR(KeepOnly(DescriptorsOf(inheritance)));
  ForgetKeepersVariables();
  BATON_RETURN_IF_ERROR(Confine({program.uid, program.gid, inheritance.realtime_priority}));
  const absl::Status tied = TieToLifeline(inheritance.lifeline);
  if (absl::IsUnavailable(tied)) _exit(0);
  BATON_RETURN_IF_ERROR(tied);
  const bool outside_effects = inheritance.outside_effects;
  const int presence = inheritance.presence;
  // The driver object lives as long as the process.
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<NativeDriver> driver,
                         NativeDriver::Create(std::move(inheritance)));
  g_driver = driver.release();
  BATON_ASSIGN_OR_RETURN(const native::NativeObject object,
                         native::NativeObject::Load(program.object));
  // Otherwise peers would wait for page faults when this worker takes over as an heir.
  native::Prefault();
  // With outside effects there is no unmapper, because the successor waits until this process's
  // memory is gone. The unmapper holds `presence`, so the next driver waits for it, too.
  const absl::Status started = outside_effects ? absl::OkStatus() : native::StartUnmapper(presence);
  if (!started.ok()) {
    std::fprintf(stderr,
                 "baton: who follows this worker may wait for longer, without unmapper: %s\n",
                 std::string(MessageOf(started)).c_str());
  }
  object.Run(program.arguments);
}

[[noreturn]] void RunChild(const NativeProgram& program, NativeInheritance inheritance,
                           int output) {
  (void)setpgid(0, 0);  // see SpawnPlan::LeaveSession
  prctl(PR_SET_NAME, "baton-native");
  GoLikeOthersWhenMemoryIsShort();  // an heir follows it
  ResetSignals();
  const int news = inheritance.news;
  const absl::Status status = BecomeWorker(program, std::move(inheritance), output);
  const std::string line = NewsLine(kWorkerFailed, -1, -1, MessageOf(status));
  (void)!write(news, line.data(), line.size());
  _exit(127);
}

}  // namespace

BatonNativeHost* HostOfThisProcess() { return g_driver == nullptr ? nullptr : g_driver->host(); }

absl::StatusOr<ForkedWorker> ForkWorker(const NativeProgram& program, NativeInheritance inheritance,
                                        int output) {
  BATON_RETURN_IF_ERROR(CheckAlone());
  BATON_ASSIGN_OR_RETURN(SocketPair session, MakeSocketPair(SOCK_STREAM));
  inheritance.session = session.theirs.get();
  ForkedWorker worker;
  // Holds room for the worker's pidfd: nobody would reap a child that has none.
  BATON_ASSIGN_OR_RETURN(worker.pidfd, OpenPidfd(getpid()));
  worker.pid = fork();
  if (worker.pid < 0) return ErrnoStatus(errno, "fork (see RLIMIT_NPROC, pids.max)");
  worker.pidfd.Reset();  // in both processes
  if (worker.pid == 0) RunChild(program, std::move(inheritance), output);
  absl::StatusOr<FileDescriptor> pidfd = OpenPidfd(worker.pid);
  // The child stays a zombie: its object's file system may delay its death, and the driver never
  // waits.
  if (!pidfd.ok()) kill(worker.pid, SIGKILL);
  BATON_ASSIGN_OR_RETURN(worker.pidfd, std::move(pidfd));
  worker.session = std::move(session.ours);
  return worker;
}

}  // namespace baton::driver_process
