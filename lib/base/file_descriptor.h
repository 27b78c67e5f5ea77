// This file has the owner of a file descriptor, and functions that make sockets, pipes and pidfds.
#ifndef LIB_BASE_FILE_DESCRIPTOR_H_
#define LIB_BASE_FILE_DESCRIPTOR_H_

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <unistd.h>

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace baton {

class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    if (this != &other) Reset(std::exchange(other.fd_, -1));
    return *this;
  }
  ~FileDescriptor() { Reset(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  int Release() { return std::exchange(fd_, -1); }
  void Reset(int fd = -1) {
    if (fd_ >= 0) close(fd_);
    fd_ = fd;
  }

 private:
  int fd_ = -1;
};

// All descriptors that these functions return are close-on-exec.

// Returns another descriptor of the same open file, numbered `least` or above. If there is none,
// errno says why.
FileDescriptor CopyOf(int fd, int least = 0);

struct SocketPair {
  FileDescriptor ours, theirs;
};
// Returns two connected AF_UNIX sockets. `type`: SOCK_STREAM | SOCK_NONBLOCK, for example.
absl::StatusOr<SocketPair> MakeSocketPair(int type);

// Both are for a UNIX stream socket on which others may pass descriptors that nobody here wants.
// KeepInLine() is called before anything is read. It makes the kernel drop no urgent byte, and so
// no descriptor that came with one.
void KeepInLine(int socket);
// Does what recvmsg(2) does, without waiting. `header` has one buffer, and no room for descriptors.
// EBADMSG: descriptors came, with these bytes or later ones. They stay in the socket, and nothing
// is read any more.
ssize_t ReceiveBytes(int socket, msghdr* header);

struct Pipe {
  FileDescriptor reading, writing;
};
// `flags`: as for pipe2(2), e.g. O_NONBLOCK.
absl::StatusOr<Pipe> MakePipe(int flags = 0);

// Returns a pidfd, which never becomes another process's (pidfd_open(2)). The id may be another
// process's by the time of the call, unless it is that of a child of this process that is not
// reaped yet.
absl::StatusOr<FileDescriptor> OpenPidfd(pid_t process);

// Adds the descriptor to an epoll set (epoll_ctl(2)).
absl::Status AddToEpoll(int epoll, int fd, epoll_event event);

// Returns false, with errno, if the process is gone or may not be signalled. The caller may pass
// any descriptor: one that is no pidfd is an error.
bool SendSignal(int pidfd, int signal);

}  // namespace baton

#endif  // LIB_BASE_FILE_DESCRIPTOR_H_
