// The socket at which baton-init receives batond's signs of life (sd_notify(3)), as a service
// manager does.
#ifndef SUPERVISOR_BATOND_LIFE_SIGNS_H_
#define SUPERVISOR_BATOND_LIFE_SIGNS_H_

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include "lib/base/clock.h"
#include "lib/base/file_descriptor.h"
#include "lib/base/program_start.h"

namespace baton {

inline time_t Milliseconds() { return static_cast<time_t>(MonotonicNanoseconds() / 1'000'000); }

// Counts a process's silence from its first sign of life on, so that a program that shows none is
// never killed. Once one process has shown life, those that follow it are expected to.
// Thread-compatible. Any process of the network namespace can write to the socket, as to that of
// systemd; what others than the process write is ignored.
class LifeSigns {
 public:
  // Makes the socket, of which SIGIO tells. Without one, which is logged, or if another watches, no
  // silence counts.
  void Listen() {
    const char* const given = getenv("WATCHDOG_USEC");
    if (getenv("NOTIFY_SOCKET") != nullptr) return;
    if (given != nullptr) limit_ms_ = static_cast<time_t>(std::strtoull(given, nullptr, 10) / 1000);
    if (limit_ms_ <= 0) return;
    socket_.Reset(socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (socket_ && Bind()) return;
    std::fprintf(stderr, "baton-init: nobody notices it if batond hangs: its socket: %s\n",
                 std::strerror(errno));
    socket_.Reset();
  }

  // In the child, which alone may show its life.
  void SetEnvironment() const {
    if (!socket_) return;
    setenv("NOTIFY_SOCKET", name_.c_str(), /*overwrite=*/1);
    setenv("WATCHDOG_USEC", std::to_string(limit_ms_ * 1000).c_str(), /*overwrite=*/1);
    setenv("WATCHDOG_PID", std::to_string(getpid()).c_str(), /*overwrite=*/1);
    setenv(kInitVariable, "1", /*overwrite=*/1);
  }

  // A process was started.
  void Expect() {
    if (seen_) until_ms_ = Milliseconds() + limit_ms_;
  }

  // Takes what has come, and notes a sign of life of process `child`; 0: there is none, and the
  // kernel gives this number to senders of other process namespaces. Whoever floods the socket does
  // not keep the caller here.
  void Take(pid_t child) {
    char text[4096];
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(ucred))];
    for (int taken = 0; taken < kMostAtOnce; ++taken) {
      iovec part = {text, sizeof(text)};
      msghdr message = {};
      message.msg_iov = &part;
      message.msg_iovlen = 1;
      message.msg_control = control;  // no room for descriptors, which the kernel then closes
      message.msg_controllen = sizeof(control);
      const ssize_t length = socket_ ? recvmsg(socket_.get(), &message, MSG_CMSG_CLOEXEC) : -1;
      if (length < 0) return;
      const std::string_view said(text, static_cast<size_t>(length));
      const bool is_sign = said.find("WATCHDOG=1") != std::string_view::npos;
      if (!is_sign || child <= 0 || SenderOf(message) != child) continue;
      seen_ = true;
      until_ms_ = Milliseconds() + limit_ms_;
    }
  }

  // Returns true if the process has been silent for limit_ms(). Call it when that time is over.
  bool HaveStopped() {
    const time_t late = Milliseconds() - until_ms_;
    if (until_ms_ == kNever || late < 0) return false;
    if (late < kStoodStillMs) return true;
    until_ms_ = Milliseconds() + limit_ms_;  // this process stood still, too: a paused container
    return false;
  }
  // Until HaveStopped() may become true.
  time_t MillisecondsLeft() const {
    return until_ms_ == kNever ? kNever : std::max<time_t>(until_ms_ - Milliseconds(), 1);
  }
  time_t limit_ms() const { return limit_ms_; }

 private:
  static constexpr time_t kNever = INT32_MAX;
  static constexpr time_t kStoodStillMs = 1000;
  static constexpr int kMostAtOnce = 64;  // messages

  // At an address that the kernel chooses (unix(7), autobind), because a container may have no
  // directory to write to.
  bool Bind() {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    const int on = 1;
    socklen_t length = sizeof(address);
    if (bind(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(sa_family_t)) !=
            0 ||
        getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0 ||
        setsockopt(socket_.get(), SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)) != 0 ||
        fcntl(socket_.get(), F_SETOWN, getpid()) != 0 ||
        fcntl(socket_.get(), F_SETFL, O_NONBLOCK | O_ASYNC) != 0) {
      return false;
    }
    const size_t before_name = offsetof(sockaddr_un, sun_path) + 1;  // a NUL begins it
    name_ = "@" + std::string(address.sun_path + 1, length - before_name);
    return true;
  }

  static pid_t SenderOf(const msghdr& message) {
    const cmsghdr* const header = CMSG_FIRSTHDR(&message);
    if (header == nullptr || header->cmsg_type != SCM_CREDENTIALS) return 0;
    ucred sender = {};
    std::memcpy(&sender, CMSG_DATA(header), sizeof(sender));
    return sender.pid;
  }

  FileDescriptor socket_;  // empty: no silence counts
  std::string name_;
  time_t limit_ms_ = 60'000;
  time_t until_ms_ = kNever;  // when a process that stays silent hangs
  bool seen_ = false;         // a process has shown life
};

}  // namespace baton

#endif  // SUPERVISOR_BATOND_LIFE_SIGNS_H_
