// verbs::Address to and from socket addresses, and the few socket calls around them.
#ifndef LIB_VERBS_SOFT_SOCKET_ADDRESS_H_
#define LIB_VERBS_SOFT_SOCKET_ADDRESS_H_

#include <sys/socket.h>

#include <string>

#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"
#include "lib/verbs/verbs.h"

namespace baton::verbs::soft {

struct SocketAddress {
  sockaddr_storage storage = {};
  socklen_t size = sizeof(sockaddr_storage);
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

// Literals only: names are the caller's to resolve.
absl::StatusOr<SocketAddress> ToSocketAddress(const Address& address);
Address LocalAddressOf(int fd);
Address PeerAddressOf(int fd);
std::string ToString(const Address& address);

absl::StatusOr<FileDescriptor> OpenSocket(const SocketAddress& address);
void SetNoDelay(int fd);

}  // namespace baton::verbs::soft

#endif  // LIB_VERBS_SOFT_SOCKET_ADDRESS_H_
