#include "supervisor/batond/open_within.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "lib/base/status.h"

namespace baton {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

struct Child {
  pid_t pid;
  std::string path;  // the path that it waits for
};

std::vector<Child>& LeftBehind() {
  static auto* const left_behind = new std::vector<Child>;
  return *left_behind;
}

void ReapLeftBehind() {
  std::erase_if(LeftBehind(),
                [](const Child& child) { return waitpid(child.pid, nullptr, WNOHANG) != 0; });
}

constexpr milliseconds kDeathTimeout(100);  // of a process that has done its work

// The report of the process that opens the file. The file comes with it if `error` is 0.
struct Opened {
  int error = 0;
  bool regular = false;
};

// A message: one Opened, and room for one descriptor.
struct Message {
  Message() {
    header.msg_iov = &bytes;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof(control);
  }
  Message(const Message&) = delete;
  Message& operator=(const Message&) = delete;

  Opened opened;
  iovec bytes = {&opened, sizeof(opened)};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr header = {};
};

// Runs in the child. O_NONBLOCK: it must not wait for the other end of a FIFO.
[[noreturn]] void OpenAndSend(const std::string& path, int flags, mode_t mode, int socket) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  CloseAllBut({socket});
  Message message;
  const int file = open(path.c_str(), flags | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, mode);
  struct stat status = {};
  if (file < 0 || fstat(file, &status) != 0) {
    message.opened.error = errno;
    message.header.msg_control = nullptr;
    message.header.msg_controllen = 0;
  } else {
    message.opened.regular = S_ISREG(status.st_mode);
    cmsghdr* const rights = CMSG_FIRSTHDR(&message.header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(rights), &file, sizeof(file));
  }
  (void)sendmsg(socket, &message.header, MSG_NOSIGNAL);
  _exit(0);
}

absl::StatusOr<FileDescriptor> Receive(int socket, const std::string& path) {
  Message message;
  ssize_t got;
  do {
    got = recvmsg(socket, &message.header, MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  FileDescriptor file;
  const cmsghdr* const rights = got > 0 ? CMSG_FIRSTHDR(&message.header) : nullptr;
  if (rights != nullptr && rights->cmsg_type == SCM_RIGHTS) {
    int number = -1;
    std::memcpy(&number, CMSG_DATA(rights), sizeof(number));
    file.Reset(number);
  }
  if (got != sizeof(message.opened)) {
    return absl::InternalError(absl::StrCat(path, ": the process that opens it has ended"));
  }
  // open(2) fails so for a directory that is to be written to, and for a FIFO that nobody reads.
  const int error = message.opened.error;
  if (error == EISDIR || error == ENXIO) {
    return absl::FailedPreconditionError(absl::StrCat(path, " is not a file"));
  }
  if (error != 0) return ErrnoStatus(error, path);
  if (!file) return absl::ResourceExhaustedError(absl::StrCat(path, ": no free descriptor"));
  if (!message.opened.regular) {
    return absl::FailedPreconditionError(absl::StrCat(path, " is not a file"));
  }
  return file;
}

}  // namespace

bool BecomesReadable(int fd, milliseconds timeout) {
  const auto deadline = steady_clock::now() + timeout;
  pollfd entry = {fd, POLLIN, 0};
  for (;;) {
    const auto left = std::chrono::ceil<milliseconds>(deadline - steady_clock::now());
    const int ready = poll(&entry, 1, static_cast<int>(std::max<int64_t>(left.count(), 0)));
    if (ready >= 0 || errno != EINTR) return ready > 0;
  }
}

absl::Status MayWaitFor(const std::string& path) {
  ReapLeftBehind();
  for (const Child& child : LeftBehind()) {
    if (child.path != path) continue;
    return absl::DeadlineExceededError(absl::StrCat(
        path, ": process ", child.pid, " still waits for it: does its file system answer?"));
  }
  if (LeftBehind().size() < kMostLeftBehind) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat(path, ": ", LeftBehind().size(),
                   " processes wait for file systems that do not answer; the first of them for ",
                   LeftBehind().front().path));
}

pid_t ForkToWait(const std::function<void()>& run) {
  sigset_t all, before;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, &before);
  const pid_t pid = fork();
  if (pid == 0) {
    run();
    _exit(127);  // the child must never go on as a second batond
  }
  const int error = errno;
  sigprocmask(SIG_SETMASK, &before, nullptr);
  errno = error;
  return pid;
}

void KillAndReap(pid_t pid, int pidfd, milliseconds timeout, const std::string& path) {
  kill(pid, SIGKILL);
  if (pidfd >= 0) (void)BecomesReadable(pidfd, timeout);
  LeftBehind().push_back({pid, path});
  ReapLeftBehind();
}

void CloseAllBut(const std::vector<int>& kept) {
  unsigned int from = 0;
  for (const int descriptor : kept) {
    const auto number = static_cast<unsigned int>(descriptor);
    if (number > from) close_range(from, number - 1, 0);
    from = number + 1;
  }
  close_range(from, ~0u, 0);
}

absl::StatusOr<FileDescriptor> OpenWithin(const std::string& path, int flags, mode_t mode,
                                          milliseconds timeout) {
  BATON_RETURN_IF_ERROR(MayWaitFor(path));
  BATON_ASSIGN_OR_RETURN(SocketPair pair, MakeSocketPair(SOCK_SEQPACKET));
  const pid_t opener = ForkToWait([&] { OpenAndSend(path, flags, mode, pair.theirs.get()); });
  if (opener < 0) return ErrnoStatus(errno, absl::StrCat(path, ": fork"));
  pair.theirs.Reset();
  const FileDescriptor pidfd = OpenPidfd(opener).value_or(FileDescriptor());
  if (!BecomesReadable(pair.ours.get(), timeout)) {
    KillAndReap(opener, pidfd.get(), milliseconds(0), path);
    return absl::DeadlineExceededError(absl::StrCat(path, ": not opened within ", timeout.count(),
                                                    " ms: does its file system answer?"));
  }
  absl::StatusOr<FileDescriptor> file = Receive(pair.ours.get(), path);
  KillAndReap(opener, pidfd.get(), kDeathTimeout, path);
  return file;
}

}  // namespace baton
