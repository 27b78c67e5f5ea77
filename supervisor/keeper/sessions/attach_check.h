// Decides whether a process may become a worker of a service, and makes the tokens with which a
// worker proves its identity to control.
#ifndef SUPERVISOR_KEEPER_SESSIONS_ATTACH_CHECK_H_
#define SUPERVISOR_KEEPER_SESSIONS_ATTACH_CHECK_H_

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/channel/message_channel.h"
#include "proto/baton/internal/keeper.pb.h"

namespace baton::keeper {

// The tokens of workers. Bounded: forgets a worker's tokens when it asks for too many.
// Thread-compatible.
class WorkerTokens {
 public:
  std::string New(uint64_t worker_id);

  // Returns the worker that `token` was made for. Each token is good once.
  absl::StatusOr<uint64_t> Redeem(const std::string& token);

  void Forget(uint64_t worker_id);

 private:
  std::map<std::string, uint64_t> tokens_;
};

struct AttachingPeer {
  PeerCredentials credentials;
  bool is_child = false;  // forked by the driver: trusted with any identity
  // Its uid alone, even root's, gives it no rights (Config.distrust_contained_root).
  bool is_distrusted = false;
};

// An error says what is wrong, and the cure. `oldest_reader`: the oldest layout version whose
// readers can read the arena.
absl::Status CheckAttach(const v1::ServiceConfig& service, uint32_t oldest_reader,
                         const AttachingPeer& who, const internal::AttachArena& attach);

}  // namespace baton::keeper

#endif  // SUPERVISOR_KEEPER_SESSIONS_ATTACH_CHECK_H_
