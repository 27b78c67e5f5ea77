#include "lib/verbs/socket_address.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "lib/base/status.h"

namespace baton::verbs {

absl::StatusOr<SocketAddress> ToSocketAddress(const Address& address) {
  SocketAddress result;
  if (address.host.find('\0') != std::string::npos) {
    return absl::InvalidArgumentError("an address with a NUL in it is no IPv4 or IPv6 literal");
  }
  sockaddr_in v4 = {};
  if (inet_pton(AF_INET, address.host.c_str(), &v4.sin_addr) == 1) {
    v4.sin_family = AF_INET;
    v4.sin_port = htons(address.port);
    std::memcpy(&result.storage, &v4, sizeof(v4));
    result.size = sizeof(v4);
    return result;
  }
  sockaddr_in6 v6 = {};
  if (inet_pton(AF_INET6, address.host.c_str(), &v6.sin6_addr) == 1) {
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(address.port);
    std::memcpy(&result.storage, &v6, sizeof(v6));
    result.size = sizeof(v6);
    return result;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("'", address.host, "' is no IPv4 or IPv6 literal"));
}

Address FromSocketAddress(const sockaddr& address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address.sa_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    inet_ntop(AF_INET, &v4.sin_addr, text, sizeof(text));
    return {text, ntohs(v4.sin_port)};
  }
  if (address.sa_family == AF_INET6) {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
    inet_ntop(AF_INET6, &v6.sin6_addr, text, sizeof(text));
    return {text, ntohs(v6.sin6_port)};
  }
  return {};
}

Address BoundAddressOf(int socket) {
  SocketAddress address;
  getsockname(socket, address.get(), &address.size);
  return FromSocketAddress(*address.get());
}

Address PeerAddressOf(int socket) {
  SocketAddress address;
  getpeername(socket, address.get(), &address.size);
  return FromSocketAddress(*address.get());
}

absl::StatusOr<FileDescriptor> OpenTcpSocket(const SocketAddress& address, int flags) {
  FileDescriptor fd(
      socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | flags, IPPROTO_TCP));
  if (!fd) return ErrnoStatus(errno, "socket (out of descriptors: raise RLIMIT_NOFILE)");
  return fd;
}

std::string ToString(const Address& address) {
  const bool v6 = address.host.find(':') != std::string::npos;
  return v6 ? absl::StrCat("[", address.host, "]:", address.port)
            : absl::StrCat(address.host, ":", address.port);
}

}  // namespace baton::verbs
