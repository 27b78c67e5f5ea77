#include "lib/channel/message_channel.h"

#include <endian.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "lib/base/clock.h"
#include "lib/base/status.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77  // Linux 6.5, not in Debian 12's headers
#endif

namespace baton {
namespace {

constexpr size_t kLengthBytes = sizeof(uint32_t);
constexpr size_t kReadBytes = 16384;

absl::StatusOr<sockaddr_un> UnixAddress(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat("socket path \"", path, "\" has ", path.size(),
                                                   " bytes, between 1 and ",
                                                   sizeof(address.sun_path) - 1, " are possible"));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

absl::StatusOr<std::string> EncodeFrame(const google::protobuf::MessageLite& message) {
  const size_t size = message.ByteSizeLong();
  if (size > kMaxFrameBytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("message of ", size, " bytes, a frame carries at most ", kMaxFrameBytes));
  }
  const uint32_t length = htole32(static_cast<uint32_t>(size));
  std::string frame(reinterpret_cast<const char*>(&length), sizeof(length));
  message.AppendToString(&frame);
  return frame;
}

class Deadline {
 public:
  explicit Deadline(int timeout_ms)  // -1: none
      : none_(timeout_ms < 0),
        ns_(MonotonicNanoseconds() + static_cast<uint64_t>(std::max(timeout_ms, 0)) * 1'000'000) {}
  int left_ms() const {
    if (none_) return -1;
    const uint64_t now = MonotonicNanoseconds();
    return now >= ns_ ? 0 : static_cast<int>((ns_ - now) / 1'000'000 + 1);
  }

 private:
  bool none_;
  uint64_t ns_;
};

absl::Status WaitFor(int fd, int events, const Deadline& deadline, absl::string_view late) {
  for (;;) {
    pollfd entry = {fd, static_cast<short>(events), 0};
    const int ready = poll(&entry, 1, deadline.left_ms());
    if (ready > 0) return absl::OkStatus();
    if (ready == 0) return absl::DeadlineExceededError(late);
    if (errno != EINTR) return ErrnoStatus(errno, "poll");
  }
}

// Connects a blocking socket without waiting. Returns 0 or the error number; EAGAIN: the backlog is
// full.
int ConnectAtOnce(int fd, const sockaddr_un& address) {
  const int flags = fcntl(fd, F_GETFL);
  if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0) return errno;
  if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) return errno;
  return fcntl(fd, F_SETFL, flags) == 0 ? 0 : errno;
}

// The same, but waits for at most `timeout_ms`; EAGAIN: that was not enough. poll(2) cannot wait
// for room in a backlog. But the time limit of sends bounds connect(2), too, from a clock tick up.
int ConnectWithin(int fd, const sockaddr_un& address, int timeout_ms) {
  if (timeout_ms <= 0) return ConnectAtOnce(fd, address);
  const uint64_t deadline = MonotonicNanoseconds() + static_cast<uint64_t>(timeout_ms) * 1'000'000;
  for (;;) {
    const uint64_t now = MonotonicNanoseconds();
    // 0 would mean no limit.
    const uint64_t left_us = now >= deadline ? 1 : (deadline - now) / 1000 + 1;
    const timeval limit = {static_cast<time_t>(left_us / 1'000'000),
                           static_cast<suseconds_t>(left_us % 1'000'000)};
    if (setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)) != 0) return errno;
    if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) break;
    if (errno != EINTR || now >= deadline) return errno;
  }
  const timeval none = {};
  return setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &none, sizeof(none)) == 0 ? 0 : errno;
}

// Returns in how many pid namespaces, from that of /proc down, a process has an id, as "NSpid:" of
// the file says; 0: it does not say.
size_t PidNamespaces(const std::string& path) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("NSpid:")) continue;
    std::istringstream numbers(line.substr(line.find(':') + 1));
    size_t count = 0;
    for (int number = 0; numbers >> number; ++count) {
      if (number <= 0) return 0;
    }
    return count;
  }
  return 0;
}

}  // namespace

absl::StatusOr<FileDescriptor> ConnectUnix(const std::string& path, int timeout_ms) {
  BATON_ASSIGN_OR_RETURN(const sockaddr_un address, UnixAddress(path));
  FileDescriptor fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd) return ErrnoStatus(errno, "socket(AF_UNIX)");
  const int error = ConnectWithin(fd.get(), address, timeout_ms);
  if (error == EAGAIN) {
    return absl::UnavailableError(absl::StrCat(
        "connect to ", path, ": whoever listens there takes no connection (waited ", timeout_ms,
        " ms), and more wait than it lets: it hangs or is stopped; continue or restart it"));
  }
  if (error != 0) return ErrnoStatus(error, absl::StrCat("connect to ", path));
  return fd;
}

absl::StatusOr<FileDescriptor> ListenUnix(const std::string& path, int backlog, uint32_t mode) {
  BATON_ASSIGN_OR_RETURN(const sockaddr_un address, UnixAddress(path));
  // A process that hangs with a full backlog listens, too.
  const FileDescriptor probe(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!probe) return ErrnoStatus(errno, "socket(AF_UNIX)");
  const int probed = ConnectAtOnce(probe.get(), address);
  if (probed == 0 || probed == EAGAIN) {
    return absl::AlreadyExistsError(
        absl::StrCat(path, " is in use: another process listens on it; stop it first"));
  }
  struct stat info = {};
  if (lstat(path.c_str(), &info) == 0) {
    if (!S_ISSOCK(info.st_mode)) {
      return absl::AlreadyExistsError(absl::StrCat(path, " is in the way: it is not a socket"));
    }
    unlink(path.c_str());  // left behind by a process that was killed
  }
  FileDescriptor fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return ErrnoStatus(errno, "socket(AF_UNIX)");
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return ErrnoStatus(errno, absl::StrCat("bind ", path));
  }
  if (chmod(path.c_str(), mode) != 0) return ErrnoStatus(errno, absl::StrCat("chmod ", path));
  if (listen(fd.get(), backlog) != 0) return ErrnoStatus(errno, absl::StrCat("listen ", path));
  return fd;
}

absl::StatusOr<PeerCredentials> GetPeerCredentials(int socket) {
  ucred credentials = {};
  socklen_t length = sizeof(credentials);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) {
    return ErrnoStatus(errno, "getsockopt(SO_PEERCRED)");
  }
  return PeerCredentials{credentials.pid, credentials.uid, credentials.gid};
}

absl::StatusOr<PeerProcess> GetPeerProcess(int socket) {
  int fd = -1;
  socklen_t length = sizeof(fd);
  PeerProcess process;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &fd, &length) == 0) {
    process.pidfd.Reset(fd);
    process.certain = true;
  } else if (errno == ENOPROTOOPT) {  // before Linux 6.5
    BATON_ASSIGN_OR_RETURN(const PeerCredentials peer, GetPeerCredentials(socket));
    process.pidfd = OpenPidfd(peer.pid).value_or(FileDescriptor());
  }
  if (!process.pidfd) return ErrnoStatus(errno, "a pidfd of the process that connected");
  pollfd entry = {process.pidfd.get(), POLLIN, 0};
  if (poll(&entry, 1, 0) != 0) return absl::NotFoundError("the process that connected is dead");
  return process;
}

bool IsPeerContained(int socket) {
  // A process of a namespace beside ours has no id here. This does not call GetPeerProcess(), which
  // opens a pidfd before Linux 6.5: control's filter of system calls forbids that.
  const auto peer = GetPeerCredentials(socket);
  if (!peer.ok() || peer->pid <= 0) return true;
  int fd = -1;
  socklen_t length = sizeof(fd);
  const bool known = getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &fd, &length) == 0;
  if (!known && errno != ENOPROTOOPT) return true;
  const FileDescriptor process(known ? fd : -1);
  const size_t its = PidNamespaces(known ? absl::StrCat("/proc/self/fdinfo/", fd)
                                         : absl::StrCat("/proc/", peer->pid, "/status"));
  return its == 0 || its != PidNamespaces("/proc/self/status");
}

// `descriptors` go with the first byte.
absl::Status MessageChannel::WriteSome(Output& output, const std::vector<int>& descriptors) {
  while (output.written < output.bytes.size()) {
    iovec data = {output.bytes.data() + output.written, output.bytes.size() - output.written};
    msghdr header = {};
    header.msg_iov = &data;
    header.msg_iovlen = 1;
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxFrameDescriptors)] = {};
    if (output.written == 0 && !descriptors.empty()) {
      const size_t bytes = sizeof(int) * descriptors.size();
      header.msg_control = control;
      header.msg_controllen = CMSG_SPACE(bytes);
      cmsghdr* item = CMSG_FIRSTHDR(&header);
      item->cmsg_level = SOL_SOCKET;
      item->cmsg_type = SCM_RIGHTS;
      item->cmsg_len = CMSG_LEN(bytes);
      std::memcpy(CMSG_DATA(item), descriptors.data(), bytes);
    }
    const ssize_t written = sendmsg(socket_.get(), &header, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (written < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN) return absl::OkStatus();
      // ETOOMANYREFS: the user has too many descriptors in flight (unix(7)).
      return ErrnoStatus(errno, errno == ETOOMANYREFS ? "sendmsg (see RLIMIT_NOFILE)" : "sendmsg");
    }
    output.written += static_cast<size_t>(written);
  }
  return absl::OkStatus();
}

absl::Status MessageChannel::Enqueue(const google::protobuf::MessageLite& message,
                                     const std::vector<int>& descriptors) {
  BATON_RETURN_IF_ERROR(broken_);
  if (descriptors.size() > kMaxFrameDescriptors) {
    return absl::InvalidArgumentError("too many descriptors for one frame");
  }
  BATON_ASSIGN_OR_RETURN(std::string frame, EncodeFrame(message));
  if (!output_.empty() && output_bytes_ + frame.size() > max_queued_bytes_) {
    return absl::ResourceExhaustedError("the other side does not read its messages");
  }
  Output output{std::move(frame)};
  const bool is_first = output_.empty();
  if (is_first) {
    const absl::Status written = WriteSome(output, descriptors);
    if (!written.ok()) return output.written == 0 ? written : Break(written);
    if (output.written == output.bytes.size()) return absl::OkStatus();
  }
  // Only a frame that waits has duplicates: to close one ends this process's locks (fcntl(2)) on
  // the file, which the caller may have.
  for (size_t i = 0; output.written == 0 && i < descriptors.size(); ++i) {
    output.descriptors.push_back(CopyOf(descriptors[i]));
    if (!output.descriptors.back()) {
      return ErrnoStatus(errno, "duplicating a descriptor to send (see RLIMIT_NOFILE)");
    }
  }
  output_bytes_ += output.bytes.size();
  output_.push_back(std::move(output));
  if (is_first) return absl::OkStatus();
  const absl::Status written = WriteQueued();
  return written.ok() ? written : TakeBack(written);
}

// Send() or Enqueue() has returned OK for every queued message, so a failure breaks the channel.
absl::Status MessageChannel::Flush() {
  BATON_RETURN_IF_ERROR(broken_);
  const absl::Status written = WriteQueued();
  return written.ok() ? written : Break(written);
}

absl::Status MessageChannel::WriteQueued() {
  while (!output_.empty()) {
    Output& front = output_.front();
    std::vector<int> descriptors;
    for (const FileDescriptor& duplicate : front.descriptors) {
      descriptors.push_back(duplicate.get());
    }
    BATON_RETURN_IF_ERROR(WriteSome(front, descriptors));
    if (front.written != 0) front.descriptors.clear();
    if (front.written < front.bytes.size()) return absl::OkStatus();
    output_bytes_ -= front.bytes.size();
    output_.pop_front();
  }
  return absl::OkStatus();
}

// Drops the newest frame, whose sender gets `why`. That is possible only if it is the one that
// failed: the only one, and not written in part. Otherwise breaks the channel.
absl::Status MessageChannel::TakeBack(const absl::Status& why) {
  if (output_.size() != 1 || output_.front().written != 0) return Break(why);
  output_.clear();
  output_bytes_ = 0;
  return why;
}

absl::Status MessageChannel::Break(const absl::Status& why) {
  broken_ = absl::UnavailableError(absl::StrCat(
      "the connection is given up: what was on its way could not be sent: ", why.message()));
  output_.clear();
  output_bytes_ = 0;
  shutdown(socket_.get(), SHUT_RDWR);  // wakes an event loop of this process, too
  return broken_;
}

absl::Status MessageChannel::Send(const google::protobuf::MessageLite& message,
                                  const std::vector<int>& descriptors, int timeout_ms) {
  const Deadline deadline(timeout_ms);
  BATON_RETURN_IF_ERROR(Enqueue(message, descriptors));
  while (pending()) {
    absl::Status status =
        WaitFor(socket_.get(), POLLOUT, deadline, "the other side does not read its messages");
    if (absl::IsDeadlineExceeded(status)) return status;
    if (status.ok()) status = WriteQueued();
    if (!status.ok()) return TakeBack(status);
  }
  return absl::OkStatus();
}

absl::Status MessageChannel::TakeDescriptors(msghdr* header, std::vector<FileDescriptor>* taken) {
  for (cmsghdr* item = CMSG_FIRSTHDR(header); item; item = CMSG_NXTHDR(header, item)) {
    if (item->cmsg_level != SOL_SOCKET || item->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (item->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(item) + i * sizeof(int), sizeof(int));
      taken->emplace_back(fd);
    }
  }
  if (taken->size() <= kMaxFrameDescriptors && (header->msg_flags & MSG_CTRUNC) == 0) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(
      "more descriptors arrived than could be taken (see RLIMIT_NOFILE)");
}

absl::Status MessageChannel::AwaitSender(pid_t pid) {
  const int on = 1;
  if (setsockopt(socket_.get(), SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)) != 0) {
    return ErrnoStatus(errno, "setsockopt(SO_PASSCRED)");
  }
  awaited_sender_ = pid;
  sender_seen_ = false;
  char byte;
  emptied_ = recv(socket_.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && errno == EAGAIN;
  return absl::OkStatus();
}

// One read returns bytes of one sender only. The kernel noted the sender's id when it was sending.
void MessageChannel::NoteSender(msghdr* header) {
  if (awaited_sender_ == 0 || !emptied_) return;
  for (cmsghdr* item = CMSG_FIRSTHDR(header); item; item = CMSG_NXTHDR(header, item)) {
    if (item->cmsg_level != SOL_SOCKET || item->cmsg_type != SCM_CREDENTIALS) continue;
    ucred credentials;
    std::memcpy(&credentials, CMSG_DATA(item), sizeof(credentials));
    sender_seen_ |= credentials.pid == awaited_sender_;
  }
}

uint32_t MessageChannel::LengthAt(size_t position) const {
  uint32_t length;
  std::memcpy(&length, input_.data() + position, sizeof(length));
  return le32toh(length);
}

// Returns where the last frame begins that was read, at least in part, in bytes of the stream.
uint64_t MessageChannel::LastFrame() const {
  size_t last = input_start_;
  for (size_t next = last; next < input_.size();) {
    last = next;
    if (input_.size() - next < kLengthBytes) break;
    next += kLengthBytes + size_t{LengthAt(next)};
  }
  return taken_ + (last - input_start_);
}

ssize_t MessageChannel::Read(msghdr* header, PassedDescriptor* passed) {
  switch (takes_) {
    case Takes::kAny:
      return recvmsg(socket_.get(), header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    case Takes::kOne:
      return ReceiveBytesAndOne(socket_.get(), header, passed);
    case Takes::kNone:
      break;
  }
  return ReceiveBytes(socket_.get(), header);
}

// A read ends with the bytes that descriptors came with, though it may begin with others. So the
// descriptors belong to the last frame that begins in the read. If none does, they came with the
// middle of a frame, and are closed. `old_size`: of the input before the read.
absl::Status MessageChannel::NoteDescriptors(msghdr* header, size_t old_size,
                                             PassedDescriptor passed) {
  Received received;
  if (takes_ == Takes::kAny) {
    BATON_RETURN_IF_ERROR(TakeDescriptors(header, &received.descriptors));
  }
  received.passed = std::move(passed);
  if (received.descriptors.empty() && !received.passed) return absl::OkStatus();
  received.frame = LastFrame();
  if (received.frame >= taken_ + (old_size - input_start_))
    received_.push_back(std::move(received));
  return absl::OkStatus();
}

absl::Status MessageChannel::Fill() {
  // If two frames have descriptors, the first is complete. It is returned before more is read.
  while (received_.size() < 2) {
    const size_t old_size = input_.size();
    input_.resize(old_size + kReadBytes);
    iovec data = {input_.data() + old_size, kReadBytes};
    alignas(cmsghdr) char
        control[CMSG_SPACE(sizeof(int) * kMaxFrameDescriptors) + CMSG_SPACE(sizeof(ucred))];
    msghdr header = {};
    header.msg_iov = &data;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen =
        (takes_ == Takes::kAny ? CMSG_SPACE(sizeof(int) * kMaxFrameDescriptors) : 0) +
        (awaited_sender_ != 0 ? CMSG_SPACE(sizeof(ucred)) : 0);
    PassedDescriptor passed;
    ssize_t got = Read(&header, &passed);
    const int error = errno;
    // The other side has closed the socket and left something unread, and all that it had sent is
    // read (unix_stream_read_generic of the kernel).
    if (got < 0 && error == ECONNRESET) got = 0;
    input_.resize(old_size + static_cast<size_t>(got > 0 ? got : 0));
    if (got < 0) {
      if (error == EINTR) continue;
      if (error == EAGAIN) {
        emptied_ = true;
        return broken_;
      }
      if (error == EBADMSG) {
        return absl::InvalidArgumentError(takes_ == Takes::kNone
                                              ? "descriptors came, and none are taken here"
                                              : "more than one descriptor came");
      }
      return ErrnoStatus(error, "recvmsg (see RLIMIT_NOFILE)");
    }
    BATON_RETURN_IF_ERROR(got == 0 ? broken_ : absl::OkStatus());
    if (got == 0) return absl::UnavailableError("the other side closed the connection");
    NoteSender(&header);
    BATON_RETURN_IF_ERROR(NoteDescriptors(&header, old_size, std::move(passed)));
    if (input_.size() - input_start_ > max_frame_bytes_ + kLengthBytes) return absl::OkStatus();
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> MessageChannel::NextFrame(google::protobuf::MessageLite* message,
                                               std::vector<FileDescriptor>* descriptors) {
  Received with;
  BATON_ASSIGN_OR_RETURN(const bool whole, TakeFrame(message, &with));
  if (whole && descriptors) *descriptors = std::move(with.descriptors);
  return whole;
}

absl::StatusOr<bool> MessageChannel::NextFrameWithOne(google::protobuf::MessageLite* message,
                                                      PassedDescriptor* passed) {
  Received with;
  BATON_ASSIGN_OR_RETURN(const bool whole, TakeFrame(message, &with));
  *passed = std::move(with.passed);
  return whole;
}

absl::StatusOr<bool> MessageChannel::TakeFrame(google::protobuf::MessageLite* message,
                                               Received* with) {
  const size_t available = input_.size() - input_start_;
  if (available < kLengthBytes) return false;
  const uint32_t length = LengthAt(input_start_);
  if (length > max_frame_bytes_) {
    return absl::InvalidArgumentError(absl::StrCat("a frame claims ", length, " bytes, at most ",
                                                   max_frame_bytes_, " are allowed"));
  }
  if (available < kLengthBytes + length) return false;
  if (!message->ParseFromArray(input_.data() + input_start_ + kLengthBytes,
                               static_cast<int>(length))) {
    return absl::InvalidArgumentError("a frame does not parse as the expected message");
  }
  if (!received_.empty() && received_.front().frame == taken_) {
    *with = std::move(received_.front());
    received_.pop_front();
  }
  input_start_ += kLengthBytes + length;
  taken_ += kLengthBytes + length;
  if (input_start_ == input_.size()) {
    input_.clear();
    input_start_ = 0;
  } else if (input_start_ > kReadBytes && input_start_ >= input_.size() / 2) {
    input_.erase(0, input_start_);
    input_start_ = 0;
  }
  return true;
}

absl::Status MessageChannel::Receive(google::protobuf::MessageLite* message, int timeout_ms,
                                     std::vector<FileDescriptor>* descriptors) {
  const Deadline deadline(timeout_ms);
  for (;;) {
    BATON_ASSIGN_OR_RETURN(const bool whole, NextFrame(message, descriptors));
    if (whole) return absl::OkStatus();
    // Queued requests must be written, or they would never be answered.
    const int events = pending() ? POLLIN | POLLOUT : POLLIN;
    BATON_RETURN_IF_ERROR(WaitFor(socket_.get(), events, deadline, "no answer in time"));
    (void)Flush();  // if it fails, Fill returns why
    const absl::Status filled = Fill();
    if (!filled.ok()) {
      // A frame that arrived before the end still counts.
      BATON_ASSIGN_OR_RETURN(const bool last, NextFrame(message, descriptors));
      return last ? absl::OkStatus() : filled;
    }
  }
}

}  // namespace baton
