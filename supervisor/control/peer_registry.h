// Finds the peer of a gRPC connection that was made from an accepted descriptor. gRPC names such a
// peer "fd:N"; this class looks that number up. It also bounds the connections of one uid.
//
// Thread-safe.
#ifndef SUPERVISOR_CONTROL_PEER_REGISTRY_H_
#define SUPERVISOR_CONTROL_PEER_REGISTRY_H_

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "supervisor/control/peer_listener.h"

namespace baton {

class PeerRegistry {
 public:
  explicit PeerRegistry(size_t connections_per_uid = 256)
      : connections_per_uid_(connections_per_uid) {}

  // Whether the calls served on a connection depend on its peer's role, or are the same for all.
  enum class Served : uint8_t { kByRole, kAlike };

  // Before `fd` is given to gRPC. False: that uid has too many open already.
  bool Add(int fd, const Peer& peer, Served served = Served::kAlike);
  // `grpc_peer` is ServerContext::peer() of a call in progress.
  std::optional<Peer> Find(const std::string& grpc_peer) const;
  // Ends the connections that are served by role, with the calls on them, of those for whom `whose`
  // is true.
  void End(const std::function<bool(const Peer&)>& whose);
  // For log lines: "uid 0 pid 12".
  std::string Describe(const std::string& grpc_peer) const;

 private:
  struct Entry {
    Peer peer;
    ino_t inode;  // of the socket: tells whether the number still means this connection
    Served served;
  };

  void ForgetClosed();

  const size_t connections_per_uid_;
  mutable std::mutex mutex_;
  std::map<int, Entry> entries_;       // by descriptor; closed ones stay until they are in the way
  std::map<uint32_t, size_t> of_uid_;  // how many entries
};

}  // namespace baton

#endif  // SUPERVISOR_CONTROL_PEER_REGISTRY_H_
