#include "tests/fuzz/fake_processes.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <mutex>
#include <vector>

#include "lib/base/file_descriptor.h"
#include "supervisor/keeper/programs/program.h"

extern "C" {
// NOLINTBEGIN: the linker gives these names
long __real_syscall(long number, ...);
int __real_getsockopt(int fd, int level, int name, void* value, socklen_t* length);
int __real_bind(int fd, const sockaddr* address, socklen_t length);
int __real_connect(int fd, const sockaddr* address, socklen_t length);
int __real_listen(int fd, int backlog);
// NOLINTEND
}

namespace baton::fuzz {
namespace {

constexpr int kPeerPidfd = 77;  // SO_PEERPIDFD

// An eventfd is readable once it was written, as a pidfd is once its process is dead. Ours shares
// the object with the one that the keeper has, whose number is not ours to keep.
struct Process {
  FileDescriptor fd;
  bool killable = true;
};

std::atomic<bool> active{false};
std::atomic<uint16_t> port{0};
std::mutex mutex;
std::vector<Process> processes;             // guarded by mutex, as all below
std::vector<std::pair<int, size_t>> known;  // keeper's descriptor, index in processes
uint32_t peer_uid = 0;
bool peer_killable = true;

void End(const Process& process) { eventfd_write(process.fd.get(), 1); }

long OpenProcess() {
  const int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (fd < 0) return -1;
  const std::lock_guard<std::mutex> lock(mutex);
  known.emplace_back(fd, processes.size());
  processes.push_back({FileDescriptor(dup(fd)), peer_killable});
  return fd;
}

long SendKill(int fd) {
  const std::lock_guard<std::mutex> lock(mutex);
  // The latest that had this number.
  for (auto it = known.rbegin(); it != known.rend(); ++it) {
    if (it->first != fd) continue;
    if (!processes[it->second].killable) {
      errno = EPERM;
      return -1;
    }
    End(processes[it->second]);
    return 0;
  }
  errno = EBADF;
  return -1;
}

}  // namespace

FakeProcesses::Guard::Guard() {
  const std::lock_guard<std::mutex> lock(mutex);
  processes.clear();
  known.clear();
  peer_uid = geteuid();
  peer_killable = true;
  port = 0;
  active = true;
}

FakeProcesses::Guard::~Guard() { active = false; }

void FakeProcesses::SetPeer(uint32_t uid, bool killable) {
  const std::lock_guard<std::mutex> lock(mutex);
  peer_uid = uid;
  peer_killable = killable;
}

void FakeProcesses::KillAll() {
  const std::lock_guard<std::mutex> lock(mutex);
  for (const Process& process : processes) End(process);
}

void FakeProcesses::KillOne(uint32_t ordinal) {
  const std::lock_guard<std::mutex> lock(mutex);
  if (ordinal < processes.size()) End(processes[ordinal]);
}

uint32_t FakeProcesses::count() {
  const std::lock_guard<std::mutex> lock(mutex);
  return static_cast<uint32_t>(processes.size());
}

FileDescriptor FakeProcesses::Start() { return FileDescriptor(static_cast<int>(OpenProcess())); }

uint16_t FakeProcesses::listening_port() { return port; }

// The linker's: C linkage, so that the namespace has no part in their names.
extern "C" {
// NOLINTBEGIN

// With all the arguments that a call can have: those that were not given are not looked at, here
// and by the kernel.
long __wrap_syscall(long number, long a, long b, long c, long d, long e, long f) {
  if (active && number == SYS_pidfd_open) return OpenProcess();
  if (active && number == SYS_pidfd_send_signal) return SendKill(static_cast<int>(a));
  return __real_syscall(number, a, b, c, d, e, f);
}

int __wrap_getsockopt(int fd, int level, int name, void* value, socklen_t* length) {
  if (active && level == SOL_SOCKET && name == kPeerPidfd) {
    errno = ENOPROTOOPT;
    return -1;
  }
  const int result = __real_getsockopt(fd, level, name, value, length);
  if (active && level == SOL_SOCKET && name == SO_PEERCRED && result == 0) {
    const std::lock_guard<std::mutex> lock(mutex);
    static_cast<ucred*>(value)->uid = peer_uid;
  }
  return result;
}

// An address of this process alone, and a port that the system chooses.
int __wrap_bind(int fd, const sockaddr* address, socklen_t length) {
  if (!active || address->sa_family == AF_UNIX) return __real_bind(fd, address, length);
  if (address->sa_family != AF_INET) {
    errno = EADDRNOTAVAIL;
    return -1;
  }
  sockaddr_in own = {};
  own.sin_family = AF_INET;
  own.sin_addr.s_addr = htonl(0x7f100000u | (static_cast<uint32_t>(getpid()) & 0xfffff));
  return __real_bind(fd, reinterpret_cast<const sockaddr*>(&own), sizeof(own));
}

int __wrap_listen(int fd, int backlog) {
  const int result = __real_listen(fd, backlog);
  sockaddr_in own = {};
  socklen_t length = sizeof(own);
  if (active && result == 0 && getsockname(fd, reinterpret_cast<sockaddr*>(&own), &length) == 0 &&
      own.sin_family == AF_INET) {
    port = ntohs(own.sin_port);
  }
  return result;
}

int __wrap_connect(int fd, const sockaddr* address, socklen_t length) {
  if (!active || address->sa_family == AF_UNIX) return __real_connect(fd, address, length);
  sockaddr_in to = {};
  if (address->sa_family == AF_INET && length == sizeof(to)) {
    to = *reinterpret_cast<const sockaddr_in*>(address);
  }
  if (port == 0 || to.sin_port != htons(port)) {
    errno = ECONNREFUSED;
    return -1;
  }
  to.sin_addr.s_addr = htonl(0x7f100000u | (static_cast<uint32_t>(getpid()) & 0xfffff));
  return __real_connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof(to));
}

// NOLINTEND
}

}  // namespace baton::fuzz

namespace baton::keeper {

// ---- Takes the place of supervisor/keeper/programs/program.cc: the workers of an upgrade are
// processes as those above, and nothing is run.

// It has ended already.
absl::StatusOr<StartedReading> StartReading(pid_t, const std::string&, int) {
  StartedReading reading;
  reading.pidfd.Reset(eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK));
  return reading;
}

absl::StatusOr<internal::Program> TakeReading(const StartedReading&, uint32_t uid, uint32_t gid) {
  internal::Program program;
  program.set_path("/nowhere/before");
  program.add_arguments("--serve");
  program.set_uid(uid);
  program.set_gid(gid);
  return program;
}

absl::StatusOr<bool> TakeMapsFile(const StartedReading&) { return false; }

absl::Status CheckProgramPath(const std::string& path, std::string_view) {
  if (!path.starts_with('/')) return absl::InvalidArgumentError("exec: is no absolute path");
  return absl::OkStatus();
}

// With the pid that every client of the fuzzer has: whoever attaches next is of this program.
absl::StatusOr<StartedProgram> StartProgram(const internal::Program& program, const std::string&,
                                            int) {
  if (program.path().size() > 100) return absl::NotFoundError("exec: no such file");
  StartedProgram started;
  started.pid = getpid();
  started.pidfd = fuzz::FakeProcesses::Start();
  return started;
}

void EnterProgram(int) {}

absl::Status ReadEntered(int) { return absl::OkStatus(); }

std::string ReapProgram(int pidfd) {
  pollfd entry = {pidfd, POLLIN, 0};
  return poll(&entry, 1, 0) > 0 ? "ended with status 0" : "";
}

}  // namespace baton::keeper
