#include "supervisor/control/sandbox.h"

#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <thread>

#include "gtest/gtest.h"
#include "lib/base/file_descriptor.h"

namespace baton {
namespace {

// Whether `check` holds in a process that is in the sandbox. 2: it did not get in.
int InSandbox(const std::function<bool()>& check) {
  const pid_t child = fork();
  if (child == 0) {
    if (!EnterSandbox().ok()) _exit(2);
    _exit(check() ? 0 : 1);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

std::string OwnStatus() {
  std::ifstream file("/proc/self/status");
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(Sandbox, shouldHaveNoCapabilityAndGetNone) {
  EXPECT_EQ(InSandbox([] {
              const std::string status = OwnStatus();
              return status.find("CapEff:\t0000000000000000") != std::string::npos &&
                     status.find("CapPrm:\t0000000000000000") != std::string::npos &&
                     status.find("NoNewPrivs:\t1") != std::string::npos;
            }),
            0);
}

#ifndef BATON_SANITIZED

bool Fails(long result, int error) { return result < 0 && errno == error; }

TEST(Sandbox, shouldStartNoProgramAndNoProcess) {
  EXPECT_EQ(InSandbox([] {
              char program[] = "/bin/true";
              char* const arguments[] = {program, nullptr};
              return Fails(execve(program, arguments, nullptr), ENOSYS);
            }),
            0);
  EXPECT_EQ(InSandbox([] { return Fails(syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0), EPERM); }), 0);
}

TEST(Sandbox, shouldReachNoOtherProcess) {
  const pid_t parent = getpid();
  EXPECT_EQ(InSandbox([&] {
              return Fails(kill(parent, 0), ENOSYS) &&
                     Fails(syscall(SYS_tgkill, parent, parent, 0), EPERM) &&
                     Fails(syscall(SYS_pidfd_open, parent, 0), ENOSYS) &&
                     Fails(ptrace(PTRACE_ATTACH, parent, nullptr, nullptr), ENOSYS) &&
                     Fails(syscall(SYS_process_vm_readv, parent, nullptr, 0, nullptr, 0, 0),
                           ENOSYS);
            }),
            0);
}

TEST(Sandbox, shouldTouchNeitherNamespacesNorMountsNorTheKernel) {
  EXPECT_EQ(InSandbox([] {
              return Fails(unshare(CLONE_NEWUSER), ENOSYS) &&
                     Fails(syscall(SYS_setns, 0, 0), ENOSYS) &&
                     Fails(syscall(SYS_mount, "a", "b", "c", 0, nullptr), ENOSYS) &&
                     Fails(syscall(SYS_bpf, 0, nullptr, 0), ENOSYS) &&
                     Fails(syscall(SYS_keyctl, 0, 0), ENOSYS) &&
                     Fails(syscall(SYS_io_uring_setup, 1, nullptr), ENOSYS) &&
                     Fails(setuid(0), ENOSYS) && Fails(socket(AF_PACKET, SOCK_RAW, 0), EPERM) &&
                     Fails(socket(AF_VSOCK, SOCK_STREAM, 0), EPERM);
            }),
            0);
}

TEST(Sandbox, shouldDoWhatControlDoes) {
  EXPECT_EQ(InSandbox([] {
              const FileDescriptor unix_socket(socket(AF_UNIX, SOCK_STREAM, 0));
              const FileDescriptor listening(socket(AF_INET, SOCK_STREAM, 0));
              sockaddr_in address = {};
              address.sin_family = AF_INET;
              address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
              int from_thread = 0;
              sched_param own = {};
              int policy = 0;
              std::thread([&] { from_thread = 1; }).join();
              alarm(100);  // limits how long the log may take at the end
              return pthread_getschedparam(pthread_self(), &policy, &own) == 0 && unix_socket &&
                     from_thread == 1 && alarm(0) > 0 && !OwnStatus().empty() &&
                     bind(listening.get(), reinterpret_cast<sockaddr*>(&address),
                          sizeof(address)) == 0 &&
                     listen(listening.get(), 1) == 0;
            }),
            0);
}

TEST(Sandbox, shouldStillBeAbleToAbort) {
  EXPECT_EQ(InSandbox([]() -> bool { abort(); }), -SIGABRT);
}

#endif

}  // namespace
}  // namespace baton
