// The few calls on sockets that the device makes.
#ifndef LIB_NIC_SOCKETS_H_
#define LIB_NIC_SOCKETS_H_

#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"
#include "lib/verbs/socket_address.h"
#include "lib/verbs/verbs.h"

namespace baton::verbs::soft {

Address PeerAddressOf(int fd);

absl::StatusOr<FileDescriptor> OpenSocket(const SocketAddress& address);
void SetNoDelay(int fd);

}  // namespace baton::verbs::soft

#endif  // LIB_NIC_SOCKETS_H_
