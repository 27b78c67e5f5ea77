#include "supervisor/driver/device/open_device.h"

#include <linux/capability.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/status.h"
#include "lib/verbs/rdma/rdma_device.h"
#include "supervisor/config/network_namespace.h"
#include "supervisor/config/shape.h"

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

absl::StatusOr<OpenedDevice> OpenSoft(const internal::KeeperConfig& config) {
  const v1::ServiceConfig& service = config.service();
  NicPlan plan;
  plan.program = config.nic();
  plan.faults = service.device().soft().faults();
  plan.yield_microseconds = service.yield_microseconds();
  plan.forks = service.mode() == v1::NATIVE || MayHaveBrokers(service);
  plan.identity.realtime_priority = static_cast<int>(service.realtime_priority());
  if (config.has_nic_uid()) plan.identity.uid = config.nic_uid();
  if (config.has_nic_gid()) plan.identity.gid = config.nic_gid();
  // Nothing of root's parses what peers send, also if the workers are root.
  if (const v1::NativeConfig& native = service.native(); native.uid() != 0) {
    plan.identity.uid = native.uid();
    if (native.has_gid()) plan.identity.gid = native.gid();
  }
  BATON_ASSIGN_OR_RETURN(StartedNic started, StartNic(plan));
  return OpenedDevice{std::move(started.device), std::move(started.process)};
}

absl::StatusOr<std::unique_ptr<verbs::Device>> OpenRdma(const v1::RdmaDeviceConfig& config,
                                                        const std::string& network_namespace) {
  verbs::rdma::RdmaDeviceOptions options;
  options.device = config.device();
  options.port = static_cast<uint8_t>(config.port());
  if (config.has_gid_index()) options.gid_index = static_cast<uint8_t>(config.gid_index());
  options.in_network_namespace = !network_namespace.empty();
  absl::StatusOr<std::unique_ptr<verbs::Device>> device = verbs::rdma::CreateRdmaDevice(options);
  if (!options.in_network_namespace || !absl::IsNotFound(device.status())) return device;
  // With `rdma system` exclusive, a device is in one namespace, and not seen in any other.
  return absl::NotFoundError(absl::StrCat(
      device.status().message(), "; in network namespace ", network_namespace,
      ": see rdma system show, and where it is exclusive, rdma dev set DEVICE netns NAMESPACE"));
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

absl::StatusOr<OpenedDevice> OpenDevice(const internal::KeeperConfig& config) {
  const v1::ServiceConfig& service = config.service();
  if (!service.device().has_rdma()) return OpenSoft(config);
  OpenedDevice opened;
  BATON_ASSIGN_OR_RETURN(opened.device,
                         OpenRdma(service.device().rdma(), service.network_namespace()));
  return opened;
}

}  // namespace baton::driver_process
