#include "supervisor/driver/device/service_network.h"

#include <linux/capability.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "lib/base/errno_status.h"
#include "lib/base/status_macros.h"
#include "supervisor/config/network_namespace.h"

namespace baton::driver_process {
namespace {

// Drops CAP_SYS_ADMIN of this thread. A program that it executes as root has it again.
absl::Status DropSysAdmin() {
  __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct sets[_LINUX_CAPABILITY_U32S_3] = {};
  if (syscall(SYS_capget, &header, sets) != 0) return ErrnoStatus(errno, "capget");
  __user_cap_data_struct& set = sets[CAP_TO_INDEX(CAP_SYS_ADMIN)];
  set.effective &= ~CAP_TO_MASK(CAP_SYS_ADMIN);
  set.permitted &= ~CAP_TO_MASK(CAP_SYS_ADMIN);
  set.inheritable &= ~CAP_TO_MASK(CAP_SYS_ADMIN);
  if (syscall(SYS_capset, &header, sets) != 0) return ErrnoStatus(errno, "capset");
  return absl::OkStatus();
}

absl::StatusOr<FileDescriptor> Enter(const std::string& name) {
  BATON_ASSIGN_OR_RETURN(const FileDescriptor wanted, OpenNetworkNamespace(name));
  BATON_ASSIGN_OR_RETURN(FileDescriptor own, OpenOwnNetworkNamespace());
  if (IsSameNetworkNamespace(wanted, own)) return FileDescriptor();
  BATON_RETURN_IF_ERROR(EnterNetworkNamespace(wanted));
  if (geteuid() == 0) BATON_RETURN_IF_ERROR(DropSysAdmin());
  return own;
}

}  // namespace

absl::StatusOr<FileDescriptor> EnterServiceNetwork(const v1::ServiceConfig& service) {
  const std::string& name = service.network_namespace();
  if (name.empty()) return FileDescriptor();
  absl::StatusOr<FileDescriptor> left = Enter(name);
  if (!left.ok()) return NetworkNamespaceError(name, left.status());
  return left;
}

absl::Status StayInServiceNetwork(const FileDescriptor& batonds_network) {
  return batonds_network && geteuid() == 0 ? DropSysAdmin() : absl::OkStatus();
}

}  // namespace baton::driver_process
