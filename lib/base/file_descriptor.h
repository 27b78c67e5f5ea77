#ifndef LIB_BASE_FILE_DESCRIPTOR_H_
#define LIB_BASE_FILE_DESCRIPTOR_H_

#include <unistd.h>

#include <utility>

#include "absl/status/statusor.h"

namespace baton {

// Owns a file descriptor.
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

// All that follows is not inherited by programs that this process executes.

// Another descriptor of the same open file, at `least` or above. None: errno says why.
FileDescriptor CopyOf(int fd, int least = 0);

struct SocketPair {
  FileDescriptor ours, theirs;
};
// Connected sockets of AF_UNIX. `type`: SOCK_STREAM | SOCK_NONBLOCK, for one.
absl::StatusOr<SocketPair> MakeSocketPair(int type);

struct Pipe {
  FileDescriptor reading, writing;
};
// `flags`: of pipe2(2), O_NONBLOCK for one.
absl::StatusOr<Pipe> MakePipe(int flags = 0);

}  // namespace baton

#endif  // LIB_BASE_FILE_DESCRIPTOR_H_
