#include "tests/simulation/keeper/machine.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "lib/base/check.h"

namespace baton::simulation {
namespace {

constexpr int kPeerPidfd = 77;  // SO_PEERPIDFD

thread_local Machine* here = nullptr;  // of the thread that runs the simulation

// Another in each process: the names of sockets are the real machine's.
uint64_t Nonce() {
  static const uint64_t nonce = [] {
    uint64_t drawn = 0;
    (void)!getrandom(&drawn, sizeof(drawn), 0);
    return drawn;
  }();
  return nonce;
}

template <typename Function>
Function* Libcs(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

}  // namespace

Machine::Machine(Listener& listener)
    : listener_(listener), names_(absl::StrCat("baton-simulated/", Nonce(), "/")) {
  here = this;
}

Machine::~Machine() { here = nullptr; }

// ---------------------------------------------------------------- processes

Process& Machine::Add(Process process) {
  int pair[2];
  BATON_CHECK(pipe2(pair, O_CLOEXEC) == 0);
  process.pid = ++last_pid_;
  process.reader.Reset(pair[0]);
  process.writer.Reset(pair[1]);
  struct stat file = {};
  BATON_CHECK(fstat(pair[0], &file) == 0);
  by_inode_[file.st_ino] = process.pid;
  return processes_[process.pid] = std::move(process);
}

Process& Machine::Start(internal::Program program) {
  Process process;
  process.program = std::move(program);
  return Add(std::move(process));
}

void Machine::End(Process& process) {
  if (!std::exchange(process.alive, false)) return;
  if (process.reads != 0) {
    internal::ProgramReading reading;
    const Process* const read = Find(process.reads);
    if (read != nullptr && read->alive) {
      *reading.mutable_program() = read->program;
    } else {
      reading.set_error("it has ended");
    }
    const std::string text = reading.SerializeAsString();
    BATON_CHECK(pwrite(process.result.get(), text.data(), text.size(), 0) ==
                static_cast<ssize_t>(text.size()));
    process.result.Reset();
  }
  BATON_CHECK(write(process.writer.get(), "", 1) == 1);
  process.writer.Reset();
  process.reader.Reset();
}

std::vector<pid_t> Machine::OpenPidfds() const {
  std::vector<pid_t> open;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    struct stat file = {};
    if (stat(entry.path().c_str(), &file) != 0) continue;  // the directory itself
    const auto found = by_inode_.find(file.st_ino);
    if (S_ISFIFO(file.st_mode) && found != by_inode_.end()) open.push_back(found->second);
  }
  return open;
}

Process* Machine::Find(pid_t pid) {
  const auto found = processes_.find(pid);
  return found == processes_.end() ? nullptr : &found->second;
}

Process* Machine::Of(int pidfd) {
  struct stat file = {};
  if (fstat(pidfd, &file) != 0) return nullptr;
  const auto found = by_inode_.find(file.st_ino);
  return found == by_inode_.end() ? nullptr : Find(found->second);
}

std::vector<Process*> Machine::Readings() {
  std::vector<Process*> readings;
  for (auto& [pid, process] : processes_) {
    if (process.alive && process.reads != 0) readings.push_back(&process);
  }
  return readings;
}

pid_t Machine::Spawn(char* const arguments[]) {
  Process process;
  process.parent = keeper_;
  std::string input(1 << 12, '\0');
  if (arguments[1] != nullptr) {
    BATON_CHECK(absl::SimpleAtoi(arguments[1], &process.reads));
    process.result.Reset(fcntl(last_memory_file_, F_DUPFD_CLOEXEC, 0));
  } else {
    const ssize_t length = pread(last_memory_file_, input.data(), input.size(), 0);
    BATON_CHECK(process.program.ParseFromArray(input.data(), static_cast<int>(length)));
  }
  Process& started = Add(std::move(process));
  if (started.reads == 0) listener_.OnStarted(started);
  return started.pid;
}

int Machine::OpenPidfd(pid_t pid) {
  const Process* const process = Find(pid);
  if (process == nullptr || !process->alive) {
    errno = ESRCH;
    return -1;
  }
  return fcntl(process->reader.get(), F_DUPFD_CLOEXEC, 0);
}

int Machine::Signal(int pidfd, int signal) {
  Process* const process = Of(pidfd);
  errno = process == nullptr ? EBADF : ESRCH;
  if (process == nullptr || !process->alive) return -1;
  if (process->asked != SIGKILL) process->asked = signal;
  if (process->reads != 0) {
    if (signal == SIGKILL) End(*process);
  } else {
    listener_.OnSignal(*process, signal);
  }
  return 0;
}

int Machine::Reap(int pidfd, siginfo_t* info) {
  const Process* const process = Of(pidfd);
  BATON_CHECK(process != nullptr);
  if (process->parent != keeper_) {
    errno = ECHILD;
    return -1;
  }
  info->si_pid = process->alive ? 0 : process->pid;
  info->si_code = process->asked == SIGKILL ? CLD_KILLED : CLD_EXITED;
  info->si_status = process->asked == SIGKILL ? SIGKILL : 0;
  return 0;
}

// ---------------------------------------------------------------- sockets

void Machine::Name(int socket, pid_t pid) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  const std::string name = absl::StrCat(names_, pid, "/", ++last_name_);
  BATON_CHECK(name.size() < sizeof(address.sun_path) - 1);
  memcpy(address.sun_path + 1, name.data(), name.size());
  const size_t length = offsetof(sockaddr_un, sun_path) + 1 + name.size();
  BATON_CHECK(bind(socket, reinterpret_cast<const sockaddr*>(&address),
                   static_cast<socklen_t>(length)) == 0);
}

pid_t Machine::PeerOf(int socket) const {
  sockaddr_un address = {};
  socklen_t length = sizeof(address);
  if (getpeername(socket, reinterpret_cast<sockaddr*>(&address), &length) != 0) return 0;
  const size_t begin = offsetof(sockaddr_un, sun_path) + 1;
  if (address.sun_family != AF_UNIX || length <= begin) return 0;
  const std::string_view name(address.sun_path + 1, length - begin);
  if (!name.starts_with(names_)) return 0;
  return static_cast<pid_t>(
      std::strtol(std::string(name.substr(names_.size())).c_str(), nullptr, 10));
}

// ---------------------------------------------------------------- events

int Machine::Wait(int epoll, epoll_event* events, int most, int timeout_ms) {
  static auto* const wait = Libcs<int(int, epoll_event*, int, int)>("epoll_wait");
  const int found = wait(epoll, events, most, 0);
  listener_.OnLook(found == 0 ? timeout_ms : 0);
  return found != 0 ? found : wait(epoll, events, most, 0);
}

// ---------------------------------------------------------------- in the place of libc's

extern "C" {

// Reads as many words as a call can have: the kernel does not look at those that were not given,
// and AddressSanitizer would.
[[clang::no_sanitize("address")]] long syscall(long number, ...) noexcept {
  static auto* const real = Libcs<long(long, ...)>("syscall");
  va_list list;
  va_start(list, number);
  long words[6];
  for (long& word : words) word = va_arg(list, long);
  va_end(list);
  if (here != nullptr && number == SYS_pidfd_open) {
    return here->OpenPidfd(static_cast<pid_t>(words[0]));
  }
  if (here != nullptr && number == SYS_pidfd_send_signal) {
    return here->Signal(static_cast<int>(words[0]), static_cast<int>(words[1]));
  }
  return real(number, words[0], words[1], words[2], words[3], words[4], words[5]);
}

int getsockopt(int fd, int level, int name, void* value, socklen_t* length) noexcept {
  static auto* const real = Libcs<int(int, int, int, void*, socklen_t*)>("getsockopt");
  const bool asks =
      here != nullptr && level == SOL_SOCKET && (name == SO_PEERCRED || name == kPeerPidfd);
  const pid_t pid = asks ? here->PeerOf(fd) : 0;
  if (pid == 0) return real(fd, level, name, value, length);
  if (name == SO_PEERCRED) {
    const ucred credentials = {pid, geteuid(), getegid()};
    memcpy(value, &credentials, sizeof(credentials));
    return 0;
  }
  const int pidfd = here->OpenPidfd(pid);
  memcpy(value, &pidfd, sizeof(pidfd));
  return pidfd < 0 ? -1 : 0;
}

// Without one Asio asks its timers at each look.
int timerfd_create(int clock, int flags) noexcept {
  static auto* const real = Libcs<int(int, int)>("timerfd_create");
  if (here == nullptr) return real(clock, flags);
  errno = ENOSYS;
  return -1;
}

int epoll_wait(int epoll, epoll_event* events, int most, int timeout_ms) {
  static auto* const real = Libcs<int(int, epoll_event*, int, int)>("epoll_wait");
  return here == nullptr ? real(epoll, events, most, timeout_ms)
                         : here->Wait(epoll, events, most, timeout_ms);
}

int posix_spawn(pid_t* pid, const char* path, const posix_spawn_file_actions_t* actions,
                const posix_spawnattr_t* attributes, char* const arguments[],
                char* const environment[]) {
  static auto* const real =
      Libcs<int(pid_t*, const char*, const posix_spawn_file_actions_t*, const posix_spawnattr_t*,
                char* const[], char* const[])>("posix_spawn");
  if (here == nullptr) return real(pid, path, actions, attributes, arguments, environment);
  *pid = here->Spawn(arguments);
  return 0;
}

int memfd_create(const char* name, unsigned flags) noexcept {
  static auto* const real = Libcs<int(const char*, unsigned)>("memfd_create");
  const int file = real(name, flags);
  if (here != nullptr) here->NoteMemoryFile(file);
  return file;
}

// Its memory is given when it is touched.
int madvise(void* begin, size_t length, int advice) noexcept {
  static auto* const real = Libcs<int(void*, size_t, int)>("madvise");
  return here == nullptr ? real(begin, length, advice) : 0;
}

// The machine loses no power.
int fsync(int file) {
  static auto* const real = Libcs<int(int)>("fsync");
  return here == nullptr ? real(file) : 0;
}

int waitid(idtype_t type, id_t id, siginfo_t* info, int options) {
  static auto* const real = Libcs<int(idtype_t, id_t, siginfo_t*, int)>("waitid");
  if (here == nullptr) return real(type, id, info, options);
  return here->Reap(static_cast<int>(id), info);
}

}  // extern "C"

}  // namespace baton::simulation
