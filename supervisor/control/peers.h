// The processes that connect to control.
#ifndef SUPERVISOR_CONTROL_PEERS_H_
#define SUPERVISOR_CONTROL_PEERS_H_

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace baton {

// The peer's credentials, as the kernel recorded them when the peer called connect(). A later
// change of its groups has no effect.
struct Peer {
  int32_t pid = 0;
  uint32_t uid = 0;
  std::vector<uint32_t> gids;  // the effective one, then the supplementary ones
  bool contained = false;      // in another pid namespace than control
};

absl::StatusOr<Peer> IdentifyPeer(int socket);

// Finds the peer of a gRPC connection that was made from an accepted descriptor. gRPC names such a
// peer "fd:N"; this class looks that number up. It also bounds the connections of one uid.
// Thread-safe.
class PeerRegistry {
 public:
  explicit PeerRegistry(size_t connections_per_uid = 256)
      : connections_per_uid_(connections_per_uid) {}

  // Whether the calls served on a connection depend on its peer's role, or are the same for all.
  enum class Served : uint8_t { kByRole, kAlike };

  // Call it before `fd` is given to gRPC. Returns false if the peer's uid has too many connections.
  bool Add(int fd, const Peer& peer, Served served = Served::kAlike);
  // `grpc_peer` is ServerContext::peer() of a call in progress.
  std::optional<Peer> Find(const std::string& grpc_peer) const;
  // Ends the connections that are served by role, and their calls, of each peer for which `whose`
  // returns true.
  void End(const std::function<bool(const Peer&)>& whose);
  // For log lines: "uid 0 pid 12".
  std::string Describe(const std::string& grpc_peer) const;

 private:
  struct Entry {
    Peer peer;
    ino_t inode;  // of the socket; shows whether the number still means this connection
    Served served;
  };

  void ForgetClosed();

  const size_t connections_per_uid_;
  mutable std::mutex mutex_;
  std::map<int, Entry> entries_;       // by descriptor; closed ones stay until it is used again
  std::map<uint32_t, size_t> of_uid_;  // the number of entries
};

}  // namespace baton

#endif  // SUPERVISOR_CONTROL_PEERS_H_
