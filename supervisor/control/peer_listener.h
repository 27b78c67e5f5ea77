// Accepts on a UNIX socket and tells who connected. gRPC's own listener cannot tell.
#ifndef SUPERVISOR_CONTROL_PEER_LISTENER_H_
#define SUPERVISOR_CONTROL_PEER_LISTENER_H_

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"

namespace baton {

// The peer's credentials, which the kernel recorded when the peer called connect(). A later change
// of its groups has no effect.
struct Peer {
  int32_t pid = 0;
  uint32_t uid = 0;
  std::vector<uint32_t> gids;  // the effective one, then the supplementary ones
  bool contained = false;      // in another pid namespace than control
};

absl::StatusOr<Peer> IdentifyPeer(int socket);

// Destroyed once the loop has ended. The socket's file stays: removing it could hit that of a
// successor.
class PeerListener {
 public:
  // Takes a connected, non-blocking socket. Called by the loop.
  using Accepted = std::function<void(FileDescriptor socket, const Peer& peer)>;

  // On a listening, non-blocking socket: whom to serve is for `accepted` to judge.
  PeerListener(boost::asio::io_context& loop, FileDescriptor listening, Accepted accepted);
  PeerListener(const PeerListener&) = delete;
  PeerListener& operator=(const PeerListener&) = delete;

 private:
  void Wait();
  bool AcceptOne();  // false: there are no descriptors left for it

  const Accepted accepted_;
  boost::asio::posix::stream_descriptor listening_;
  boost::asio::steady_timer pause_;
};

}  // namespace baton

#endif  // SUPERVISOR_CONTROL_PEER_LISTENER_H_
