// verbs::Address to and from socket addresses.
#ifndef LIB_VERBS_SOCKET_ADDRESS_H_
#define LIB_VERBS_SOCKET_ADDRESS_H_

#include <sys/socket.h>

#include <string>

#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"
#include "lib/verbs/verbs.h"

namespace baton::verbs {

struct SocketAddress {
  sockaddr_storage storage = {};
  socklen_t size = sizeof(sockaddr_storage);
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
};

// Takes IPv4 and IPv6 literals only; the caller resolves names. kInvalidArgument: not a literal.
absl::StatusOr<SocketAddress> ToSocketAddress(const Address& address);
// Returns an empty address if the family is neither IPv4 nor IPv6.
Address FromSocketAddress(const sockaddr& address);
Address BoundAddressOf(int socket);
Address PeerAddressOf(int socket);
// Makes a close-on-exec TCP socket of the address's family, with additional `flags` of socket(2).
absl::StatusOr<FileDescriptor> OpenTcpSocket(const SocketAddress& address, int flags);
std::string ToString(const Address& address);

}  // namespace baton::verbs

#endif  // LIB_VERBS_SOCKET_ADDRESS_H_
