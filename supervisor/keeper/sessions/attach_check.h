// Decides whether a process may become a worker of a service.
#ifndef SUPERVISOR_KEEPER_SESSIONS_ATTACH_CHECK_H_
#define SUPERVISOR_KEEPER_SESSIONS_ATTACH_CHECK_H_

#include <cstdint>

#include "absl/status/status.h"
#include "lib/channel/message_channel.h"
#include "proto/baton/internal/keeper.pb.h"

namespace baton::keeper {

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
