// Sets up connections: handles the connection manager's events, and applies an owner's decisions
// about requests.
//
// DriverParts owns this part. Thread-compatible: the driver's thread.
#ifndef LIB_DRIVER_CONNECTION_SETUP_H_
#define LIB_DRIVER_CONNECTION_SETUP_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/arena/arena.h"
#include "lib/driver/connection_teardown.h"
#include "lib/driver/driver_state.h"
#include "lib/driver/request_poster.h"
#include "lib/verbs/verbs.h"

namespace baton::driver {

class ConnectionSetup {
 public:
  ConnectionSetup(DriverState& state, ConnectionTeardown& teardown, RequestPoster& poster)
      : state_(state), arena_(state.arena), teardown_(teardown), poster_(poster) {}

  // See QueueDriver.
  bool HandleEvent(uint32_t* shard);

  // An owner accepts a request in two steps. Receives are posted in between. The request may have
  // gone in the meantime (the peer gave up): then an accept has no effect.
  void PrepareAccept(uint32_t shard, const arena::CommitEntry& entry);
  void FinishAccept(const arena::CommitEntry& entry);
  void Reject(const arena::CommitEntry& entry);

 private:
  void OnEvent(uint32_t connection, const verbs::CmEvent& event);
  void OnEnded(uint32_t connection, const verbs::CmEvent& event);
  void OnAssignedRequest(verbs::CmEvent& event, uint32_t* shard);
  void OnAssignedConnect(uint32_t connection, verbs::CmEvent& event);
  void OnEstablished(uint32_t connection);
  absl::Status CheckUsable(uint32_t shard, const arena::ConnectionRecord& connection) const;
  absl::Status CheckDeviceKept() const;
  absl::Status CreateQueuePair(uint32_t connection);
  bool MayMove(uint32_t from, uint32_t to) const;
  void AnswerAccept(const arena::CommitEntry& entry);
  std::string CopyPrivateData(uint32_t connection, uint32_t length) const;

  DriverState& state_;
  arena::Arena* const arena_;
  ConnectionTeardown& teardown_;
  RequestPoster& poster_;
};

}  // namespace baton::driver

#endif  // LIB_DRIVER_CONNECTION_SETUP_H_
