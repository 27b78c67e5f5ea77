// The soft device: reliable-connected verbs in user space, over TCP. Its queues lie in shared
// memory in mlx5's format, and a NIC in software (lib/nic) executes them.
//
// Transmission: the first PostSend of a connection since the last Progress() writes to the socket
// at once, with the acknowledgements that were due; further ones are collected and written by the
// next Progress(). Acknowledgements wait for either, at most one turn of the loop.
//
// Two things are as surprising as in rdma_cm: rnr_retry_count is what the *peer* is to use for its
// sends (rdma_connect(3), rdma_accept(3)), and retry_count of the connecting side holds for both.
// A rejected connection leaves the queue pair in the error state, an unreachable one in INIT.
#ifndef LIB_VERBS_SOFT_SOFT_DEVICE_H_
#define LIB_VERBS_SOFT_SOFT_DEVICE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"
#include "lib/nic/soft_options.h"
#include "lib/verbs/verbs.h"

namespace baton::verbs::soft {

// Makes a device with an embedded NIC, which Progress() runs. The device registers any memory, and
// its NIC sends posted requests at once. Forked processes cannot use the device.
absl::StatusOr<std::unique_ptr<Device>> CreateSoftDevice(const SoftDeviceOptions& options);

// Makes a device whose NIC is another process (baton-nic). The NIC has the other ends of `objects`
// and `ids`, two unused sockets of whole messages (SOCK_SEQPACKET). The device registers only
// memory that was named to it (Device::NameMemory). Forked processes can use it if `forks` is true.
// If the NIC ends, or does not reply within four seconds, the device is lost.
absl::StatusOr<std::unique_ptr<Device>> OpenSoftDevice(FileDescriptor objects, FileDescriptor ids,
                                                       bool forks = true);

// See Device::Describe. REQUIRES: `described` is of a soft device of this process.
absl::StatusOr<std::unique_ptr<Device>> InheritSoftDevice(const BatonInheritedDevice& described);

}  // namespace baton::verbs::soft

#endif  // LIB_VERBS_SOFT_SOFT_DEVICE_H_
