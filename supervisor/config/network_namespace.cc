#include "supervisor/config/network_namespace.h"

#include <fcntl.h>
#include <linux/nsfs.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "lib/base/status.h"

namespace baton {
namespace {

constexpr char kNamed[] = "/run/netns/";  // ip-netns(8)

bool IsNamed(const std::string& name) { return !name.empty() && name.front() != '/'; }

}  // namespace

std::string NetworkNamespacePath(const std::string& name) {
  return IsNamed(name) ? kNamed + name : name;
}

absl::StatusOr<FileDescriptor> OpenNetworkNamespace(const std::string& name) {
  const std::string path = NetworkNamespacePath(name);
  FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return ErrnoStatus(errno, path);
  if (ioctl(file.get(), NS_GET_NSTYPE) == CLONE_NEWNET) return file;
  return absl::FailedPreconditionError(absl::StrCat(path, " is no network namespace"));
}

std::string NetworkNamespaceCure(const std::string& name, const absl::Status& why) {
  if (absl::IsPermissionDenied(why)) {
    return "run batond as root, or give it CAP_SYS_ADMIN (systemd: "
           "AmbientCapabilities=CAP_SYS_ADMIN)";
  }
  if (!IsNamed(name)) return "name one that is there: ip netns list, lsns -t net";
  const std::string add = absl::StrCat("ip netns add ", name);
  // Otherwise the file is left, and its mount is gone.
  return absl::IsNotFound(why) ? add : absl::StrCat("ip netns delete ", name, " && ", add);
}

absl::Status NetworkNamespaceError(const std::string& name, const absl::Status& why) {
  return absl::Status(why.code(), absl::StrCat("network_namespace: ", name, ": ", why.message(),
                                               "; ", NetworkNamespaceCure(name, why)));
}

absl::StatusOr<FileDescriptor> OpenOwnNetworkNamespace() {
  constexpr char kOwn[] = "/proc/thread-self/ns/net";
  FileDescriptor file(open(kOwn, O_RDONLY | O_CLOEXEC));
  if (!file) return ErrnoStatus(errno, kOwn);
  return file;
}

bool IsSameNetworkNamespace(const FileDescriptor& a, const FileDescriptor& b) {
  struct stat one = {}, other = {};
  return fstat(a.get(), &one) == 0 && fstat(b.get(), &other) == 0 && one.st_dev == other.st_dev &&
         one.st_ino == other.st_ino;
}

absl::Status EnterNetworkNamespace(const FileDescriptor& file) {
  if (setns(file.get(), CLONE_NEWNET) == 0) return absl::OkStatus();
  return ErrnoStatus(errno, "setns, which takes CAP_SYS_ADMIN");
}

}  // namespace baton
