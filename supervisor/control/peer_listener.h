// Accepts on a UNIX socket and tells who connected. gRPC's own listener cannot tell.
#ifndef SUPERVISOR_CONTROL_PEER_LISTENER_H_
#define SUPERVISOR_CONTROL_PEER_LISTENER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"

namespace baton {

// As the kernel recorded them when the peer called connect(): a later change of its groups does
// not count.
struct Peer {
  int32_t pid = 0;
  uint32_t uid = 0;
  std::vector<uint32_t> gids;  // the effective one, then the supplementary ones
  bool contained = false;      // in another pid namespace than control
};

absl::StatusOr<Peer> IdentifyPeer(int socket);

class PeerListener {
 public:
  // Takes a connected, non-blocking socket. Called from the listener's thread.
  using Accepted = std::function<void(FileDescriptor socket, const Peer& peer)>;

  // On a listening, non-blocking socket: whom to serve is for `accepted` to judge.
  static absl::StatusOr<std::unique_ptr<PeerListener>> Start(FileDescriptor listening,
                                                             Accepted accepted);
  // After it returns, `accepted` is not called again. The file stays: removing it could hit that
  // of a successor.
  ~PeerListener();

 private:
  PeerListener() = default;
  void Run();
  bool AcceptOne();  // false: nobody waits

  Accepted accepted_;
  FileDescriptor listening_;
  FileDescriptor stop_;  // eventfd
  std::thread thread_;
};

}  // namespace baton

#endif  // SUPERVISOR_CONTROL_PEER_LISTENER_H_
