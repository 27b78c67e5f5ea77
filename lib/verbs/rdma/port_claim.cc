#include "lib/verbs/rdma/port_claim.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "lib/base/status.h"
#include "lib/verbs/port_taken.h"
#include "lib/verbs/socket_address.h"

namespace baton::verbs::rdma {
namespace {

bool SetReuse(int fd, int on) {
  return setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0;
}

// Binds although earlier connections of a TCP server are still at the port (TIME_WAIT, for a
// minute), which SO_REUSEADDR permits. Two sockets with SO_REUSEADDR can both be bound, but only
// one of them can start to listen (inet_csk_listen_start). It then gives SO_REUSEADDR up, and from
// then on keeps all others out, even those that are bound already and do not listen yet. The caller
// named the port, so the socket keeps it when the listening ends (SOCK_BINDPORT_LOCK).
bool BindBesideEndedConnections(int fd, const SocketAddress& at) {
  return SetReuse(fd, 1) && bind(fd, at.get(), at.size) == 0 && listen(fd, 0) == 0 &&
         SetReuse(fd, 0) && shutdown(fd, SHUT_RDWR) == 0;
}

}  // namespace

absl::StatusOr<PortClaim> ClaimPort(const Address& address) {
  BATON_ASSIGN_OR_RETURN(const SocketAddress at, ToSocketAddress(address));
  PortClaim claim;
  BATON_ASSIGN_OR_RETURN(claim.socket, OpenTcpSocket(at, 0));
  int error = bind(claim.socket.get(), at.get(), at.size) == 0 ? 0 : errno;
  if (error == EADDRINUSE && address.port != 0) {
    BATON_ASSIGN_OR_RETURN(claim.socket, OpenTcpSocket(at, 0));
    error = BindBesideEndedConnections(claim.socket.get(), at) ? 0 : errno;
  }
  if (error != 0) {
    return TcpBindError(error, address,
                        absl::StrCat("bind to ", ToString(address),
                                     " in TCP's port space, where a listener holds it, too"));
  }
  claim.port = BoundAddressOf(claim.socket.get()).port;
  return claim;
}

}  // namespace baton::verbs::rdma
