#include "tests/harness/network_namespace.h"

#include <fcntl.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "absl/strings/str_cat.h"
#include "lib/base/status.h"

namespace baton::harness {
namespace {

constexpr char kOfThread[] = "/proc/thread-self/ns/net";

absl::Status TakeUpLoopback() {
  const FileDescriptor any(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request = {};
  std::strcpy(request.ifr_name, "lo");
  request.ifr_flags = IFF_UP;
  if (ioctl(any.get(), SIOCSIFFLAGS, &request) != 0) return ErrnoStatus(errno, "taking up lo");
  return absl::OkStatus();
}

absl::StatusOr<FileDescriptor> MakeInThisThread() {
  if (unshare(CLONE_NEWNET) != 0) return ErrnoStatus(errno, "unshare");
  if (absl::Status status = TakeUpLoopback(); !status.ok()) return status;
  FileDescriptor file(open(kOfThread, O_RDONLY | O_CLOEXEC));
  if (!file) return ErrnoStatus(errno, kOfThread);
  return file;
}

}  // namespace

absl::StatusOr<NetworkNamespace> NetworkNamespace::Create() {
  absl::StatusOr<FileDescriptor> file;
  std::thread([&] { file = MakeInThisThread(); }).join();
  if (!file.ok()) return file.status();
  return NetworkNamespace(*std::move(file));
}

std::string NetworkNamespace::path() const {
  return absl::StrCat("/proc/", getpid(), "/fd/", file_.get());
}

std::string NetworkNamespace::Identity() const {
  std::array<char, 64> target;
  const ssize_t length = readlink(path().c_str(), target.data(), target.size());
  return length > 0 ? std::string(target.data(), static_cast<size_t>(length)) : std::string();
}

NetworkNamespace::Stay::Stay(const NetworkNamespace& other)
    : home_(open(kOfThread, O_RDONLY | O_CLOEXEC)) {
  if (!home_ || setns(other.fd(), CLONE_NEWNET) != 0) std::abort();
}

NetworkNamespace::Stay::~Stay() {
  if (setns(home_.get(), CLONE_NEWNET) != 0) std::abort();
}

}  // namespace baton::harness
